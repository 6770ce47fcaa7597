import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import chance

from svoo import BlockPlan
from svoo.core.equal_rows import group_equal_rows


@settings(max_examples=20)
@given(
    tokens=st.integers(1, 40),
    blocks=st.sampled_from((1, 2, 21, 22, 63, 64, 130)),
    kinds=st.integers(1, 6),
    seed=st.integers(0, 100),
)
def test_groups_are_the_equal_rows(tokens: int, blocks: int, kinds: int, seed: int) -> None:
    generator = chance(seed)
    patterns = torch.rand(2, 3, kinds, blocks, generator=generator) < 0.5
    patterns[..., -1] = torch.arange(kinds) % 2 == 0  # some differ in the last block only
    kind = torch.randint(kinds, (2, 3, tokens), generator=generator)
    keep = patterns.gather(2, kind.unsqueeze(-1).expand(-1, -1, -1, blocks))
    rows = group_equal_rows(keep)
    for b in range(2):
        for h in range(3):
            distinct = {tuple(row) for row in keep[b, h].tolist()}
            assert int((rows.sizes[b, h] > 0).sum()) == len(distinct)
            parts = rows.order[b, h].split(rows.sizes[b, h].tolist())
            assert [part.tolist() for part in parts] == [sorted(part.tolist()) for part in parts]
    assert rows.keep.shape[2] == int((rows.sizes > 0).sum(dim=-1).max())
    sizes = torch.ones(2, 3, blocks, dtype=torch.int64)
    plan = BlockPlan(rows.order, None, rows.sizes, sizes, rows.keep, check=False)
    assert torch.equal(plan.to_dense_mask(), keep)


@pytest.mark.parametrize("blocks", [5, 70])
def test_all_different(blocks: int) -> None:
    keep = torch.eye(blocks, dtype=torch.bool)[None, None]
    assert group_equal_rows(keep).sizes.tolist() == [[[1] * blocks]]
