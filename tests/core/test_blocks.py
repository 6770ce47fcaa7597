import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import normal
from torch.nn.functional import scaled_dot_product_attention

from svoo import run_plan
from svoo.core.blocks import (
    block_means,
    block_sizes,
    block_sums,
    plan_blocks,
    split_blocks,
)

CPU = torch.device("cpu")


@settings(max_examples=20)
@given(tokens=st.integers(1, 40), block=st.integers(1, 12), batch=st.integers(1, 2))
def test_sums_means_and_sizes_are_those_of_slices(tokens: int, block: int, batch: int) -> None:
    values = normal(batch, tokens, 3, 5, dtype=torch.float64).transpose(1, 2)  # a view, as seen
    slices = values.split(block, dim=2)
    assert block_sizes(tokens, block, CPU).tolist() == [part.shape[2] for part in slices]
    sums = torch.stack([part.sum(dim=2) for part in slices], dim=2)
    means = torch.stack([part.mean(dim=2) for part in slices], dim=2)
    torch.testing.assert_close(block_sums(values, block), sums)
    torch.testing.assert_close(block_means(values, block), means)
    torch.testing.assert_close(split_blocks(values, block).sum(dim=3), sums)


def test_low_precision_is_added_in_float32() -> None:
    ones = torch.ones(1, 1, 1000, 2, dtype=torch.bfloat16)  # bfloat16 cannot count above 256
    assert block_sums(ones, 500).tolist() == [[[[500.0, 500.0], [500.0, 500.0]]]]
    assert block_means(ones, 300).dtype == torch.float32


@pytest.mark.parametrize("ordered", [False, True])
def test_a_plan_of_blocks(*, ordered: bool) -> None:
    query, key, value = (normal(2, 3, 10, 4, seed=seed) for seed in range(3))
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0)) if ordered else None
    keep = torch.zeros(2, 3, 3, 4, dtype=torch.bool)
    keep[:, :, [0, 1, 2], [1, 3, 0]] = True
    plan = plan_blocks(keep, (10, 10), (4, 3), order=order)
    place = torch.arange(10) if order is None else order.argsort()
    mask = keep[:, :, place // 4][..., place // 3]
    assert torch.equal(plan.to_dense_mask(), mask)
    expected = scaled_dot_product_attention(query, key, value, attn_mask=mask)
    torch.testing.assert_close(run_plan(query, key, value, plan), expected)
