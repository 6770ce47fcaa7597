"""`make test-gpu` has to end within ten minutes on a card with 24 GB: counted, not timed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from making import GPU_EXAMPLES, far_apart, normal

MINUTES = 10
SECONDS_PER_EXAMPLE = 4.0
"""One to three kernels each; with four warps a test's tile compiles in .6 to 3 s. A tile of 64 x
64 with one warp takes minutes, because it spills."""
SECONDS_PER_KERNEL = 3.0
SECONDS_OF_THE_REST = 120.0
"""Starting, what the CPU computes to compare with, and the timing at 75,600 tokens."""
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="counts in Triton's interpreter")
def test_all_kernels_compile_in_time() -> None:
    """Every kernel that these tests start is compiled once for each kind of arguments."""
    tests = Path(__file__).parent
    files = [
        str(path)
        for path in sorted(tests.rglob("test_*.py"))
        if "kernel_device" in path.read_text() and path != Path(__file__)
    ]
    command = [sys.executable, str(tests / "as_on_a_gpu.py"), *files]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tests.parent, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = re.search(r"^kernels: (\d+)", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout[-500:]
    kernels = int(found[1])
    assert kernels > 50  # else they were not counted
    assert kernels * SECONDS_PER_KERNEL + SECONDS_OF_THE_REST <= 60 * MINUTES, done.stdout[-500:]


def test_offsets_beyond_32_bits_fit_the_card() -> None:
    """Never more than one side far apart at a time, or keys and values: nine gigabytes."""
    room = far_apart(normal(1, 3, 20, 32).bfloat16()).untyped_storage().nbytes()
    assert 2 * room <= CARD / 2
