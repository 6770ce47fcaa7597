"""`make test-gpu` has to end within ten minutes on a card with 24 GB: counted, not timed."""

import pytest
from making import GPU_EXAMPLES, far_apart, normal

MINUTES = 10
SECONDS_PER_EXAMPLE = 4.0
"""One to three kernels each; with four warps a test's tile compiles in .6 to 3 s. A tile of 64 x
64 with one warp takes minutes, because it spills."""
CARD = 24 << 30


def test_the_examples_of_all_kernel_tests_are_few(request: pytest.FixtureRequest) -> None:
    """Of whatever is collected: all of it in `make test`."""
    examples = 0
    for item in request.session.items:
        if item.get_closest_marker("gpu") is None or not isinstance(item, pytest.Function):
            continue
        settings = getattr(item.obj, "_hypothesis_internal_use_settings", None)
        examples += 1 if settings is None else min(settings.max_examples, GPU_EXAMPLES)
    assert examples * SECONDS_PER_EXAMPLE <= 60 * MINUTES, examples


def test_offsets_beyond_32_bits_fit_the_card() -> None:
    """Never more than one side far apart at a time, or keys and values: nine gigabytes."""
    room = far_apart(normal(1, 3, 20, 32).bfloat16()).untyped_storage().nbytes()
    assert 2 * room <= CARD / 2
