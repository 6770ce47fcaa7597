from pathlib import Path
from typing import Any

import pytest
import torch
from golden import Golden
from hypothesis import given, settings
from hypothesis import strategies as st
from making import normal
from methods_common import plan_mask, session_checks
from torch import Tensor

from svoo import Run, VideoLayout
from svoo.core.tiles import cut_evenly
from svoo.errors import ConfigError
from svoo.methods.dsv import DSVConfig, choose_keys, count_keys, project

CPU = torch.device("cpu")


def definition(query: Tensor, key: Tensor, config: DSVConfig) -> Tensor:
    """Which pairs are kept, bool `[B, H, N, M]`; products in low rank by an SVD of all of them."""
    tokens, keys = query.shape[2], key.shape[2]
    mask = torch.zeros(*query.shape[:3], keys, dtype=torch.bool)
    count = min(keys, max(32, round(int(keys * (1 - config.sparsity)) / 32) * 32))
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            products = query[b, h] @ (key[b, h] - key[b, h].mean(dim=0)).T
            left, sizes, right = torch.linalg.svd(products, full_matrices=False)
            rank = config.rank
            if rank < query.shape[3]:
                products = left[:, :rank] * sizes[:rank] @ right[:rank]
            for start in range(0, tokens, config.group):
                rows = list(range(tokens))[start : start + config.group]
                scores = products[rows[len(rows) // 2]].tolist()
                for column in sorted(range(keys), key=lambda c: -scores[c])[:count]:
                    mask[b, h, rows, column] = True
    return mask


@settings(max_examples=12)
@given(
    tokens=st.integers(20, 140),
    sparsity=st.sampled_from((0.0, 0.3, 0.6, 0.9)),
    group=st.sampled_from((1, 5, 32)),
    rank=st.sampled_from((1, 3, 6, 40)),
)
def test_is_its_definition(tokens: int, sparsity: float, group: int, rank: int) -> None:
    config = DSVConfig(sparsity=sparsity, group=group, rank=rank)
    query, key = (normal(2, 2, tokens, 6, seed=s, dtype=torch.float64) + s for s in (0, 1))
    mask = plan_mask(query, key, config, VideoLayout(1, 1, tokens))
    assert torch.equal(mask, definition(query, key, config))


def test_chooses_the_keys_that_their_code_chooses(goldens: Path) -> None:
    golden = Golden(goldens / "dsv-group32-L2048-s87.npz")
    rank, heads = golden.meta["low_rank_head_dim"], golden.meta["heads"]
    low = golden["hidden"].float() @ golden["lr_weight"].float().T
    query, key = low.view(1, -1, heads, 2 * rank).transpose(1, 2).split(rank, dim=-1)
    groups = cut_evenly(2048, golden.meta["group"], CPU)
    assert count_keys(2048, golden.meta["sparsity"]) == golden.meta["critical_kv"]
    keep = choose_keys(query, key, groups, golden.meta["sparsity"])
    assert torch.equal(keep, golden["keep"])


def test_low_rank_products_are_the_best_ones() -> None:
    query, key = (normal(1, 2, count, 8, seed=count, dtype=torch.float64) for count in (50, 60))
    low = project(query, key, 3)
    assert [side.shape for side in low] == [(1, 2, 50, 3), (1, 2, 60, 3)]
    products = query @ (key - key.mean(dim=2, keepdim=True)).mT
    left, sizes, right = torch.linalg.svd(products, full_matrices=False)
    best = left[..., :3] * sizes[..., None, :3] @ right[..., :3, :]
    torch.testing.assert_close(low[0] @ low[1].mT, best)
    same = query[:, :, :1].expand(1, 2, 50, 8)  # queries of rank one
    found = project(same, key, 3)
    assert all(bool(side.isfinite().all()) for side in found)
    expected = same @ (key - key.mean(dim=2, keepdim=True)).mT
    torch.testing.assert_close(found[0] @ found[1].mT, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("tokens", "kept"), [(10, 10), (100, 32), (2048, 256), (7488, 960)])
def test_how_many_keys_are_kept(tokens: int, kept: int) -> None:
    assert count_keys(tokens, 0.87) == kept


def test_large_plans_are_made_for_a_few_heads_at_a_time() -> None:
    method = DSVConfig().start(Run(steps=4))
    small, large = normal(1, 4, 7488, 1), normal(1, 1, 75_600, 1).expand(1, 40, 75_600, 1)
    assert method.heads_per_plan(small, small) >= 4
    assert method.heads_per_plan(large, large) == 1


def test_text_padding_and_two_videos() -> None:
    session_checks(DSVConfig(group=16, rank=4))


@pytest.mark.parametrize(("setting", "value"), [("sparsity", 2), ("group", 0), ("rank", 0)])
def test_bad_values_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{setting} must be .* got "):
        DSVConfig(**{setting: value})
