import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import normal

from svoo.core.block_sums import probability_sums
from svoo.kernels.cpp.block_sums import sum_blocks

pytestmark = pytest.mark.compiler


@settings(max_examples=40)
@given(
    queries=st.integers(1, 230),
    keys=st.integers(1, 150),
    size=st.sampled_from((1, 5, 32, 40, 64, 100, 128, 130)),
    block=st.sampled_from((1, 3, 16, 48, 64, 100)),
    sharpness=st.sampled_from((0.1, 1.0, 30.0)),
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
)
def test_is_the_sum_of_float64_probabilities(
    queries: int, keys: int, size: int, block: int, sharpness: float, dtype: torch.dtype
) -> None:
    query = (normal(2, 2, queries, size) * sharpness).to(dtype)
    key = normal(2, 2, keys, size, seed=1).to(dtype)
    scale = size**-0.5
    exact = probability_sums(query.double(), key.double(), block, scale)
    found = sum_blocks(query, key, block, scale)
    assert found.dtype == torch.float32
    honest = probability_sums(query, key, block, scale, implementation="torch")
    room = (honest - exact).abs().max() * 4 + 2e-6 * block  # powers of two have 2.2e-7 each
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=float(room))


def test_huge_logits_that_rise_and_fall_along_the_keys() -> None:
    """A top that rises by thousands from block to block, and one that comes first."""
    query = torch.ones(1, 2, 20, 8)
    slope = torch.linspace(-4000, 4000, 300)
    key = torch.stack((slope, slope.flip(0))).view(1, 2, 300, 1) / 8 * torch.ones(8)
    found = sum_blocks(query, key, 16, 1.0)
    exact = probability_sums(query.double(), key.double(), 16, 1.0)
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-6)
    assert found.isfinite().all()
    assert found[0, 0, 0, -1] > 15.99 and found[0, 1, 0, 0] > 15.99


def test_tokens_may_lie_in_any_order_in_memory() -> None:
    query, key = (normal(2, 100, 3, 20, seed=s).transpose(1, 2) for s in (0, 1))
    found = sum_blocks(query, key, 9, 0.3)
    torch.testing.assert_close(found, sum_blocks(query.contiguous(), key.contiguous(), 9, 0.3))


@pytest.mark.usefixtures("two_threads")
def test_two_threads_find_what_one_finds() -> None:
    query, key = (normal(1, 3, 700, 16, seed=s) for s in (0, 1))
    two = sum_blocks(query, key, 10, 0.3)
    torch.set_num_threads(1)
    assert torch.equal(sum_blocks(query, key, 10, 0.3), two)
