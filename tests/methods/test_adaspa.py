import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import normal
from methods_common import plan_mask, session_checks
from torch import Tensor

from svoo import BlockPlan, Call, Dense, Run, Session, VideoLayout
from svoo.errors import ConfigError
from svoo.methods.adaspa import AdaSpaConfig, AdaSpaMethod


def definition(query: Tensor, key: Tensor, config: AdaSpaConfig) -> Tensor:
    """Which pairs are kept, bool `[B, H, N, N]`, from probabilities held in full."""
    batch, heads, tokens, size = query.shape
    block, sparsity = config.block, config.sparsity
    cuts = [list(range(tokens))[at : at + block] for at in range(0, tokens, block)]
    mask = torch.zeros(batch, heads, tokens, tokens, dtype=torch.bool)

    def best(sums: Tensor, sparsity: float) -> list[list[int]]:
        count = max(1, round(min(1.0, 1 - sparsity) * len(cuts)))
        order = sums.argsort(dim=-1, descending=True, stable=True).tolist()
        return [row[:count] for row in order]

    for b in range(batch):
        weights = (query[b] @ key[b].mT / math.sqrt(size)).softmax(dim=-1)
        sums = [
            torch.tensor(
                [[float(w[rows][:, columns].sum()) for columns in cuts] for rows in cuts],
                dtype=torch.float64,
            )
            for w in weights
        ]
        recalls = [
            sum(float(s[i, j]) for i, kept in enumerate(best(s, sparsity)) for j in kept) / tokens
            for s in sums
        ]
        good = min(sum(recall > config.recall for recall in recalls), heads // 2)
        ranked = sorted(range(heads), key=lambda h: -recalls[h])
        for rank, h in enumerate(ranked):
            share = sparsity
            if rank < good:
                share = (1 + sparsity) / 2
            if rank >= heads - good:
                share = (3 * sparsity - 1) / 2
            for rows, kept in zip(cuts, best(sums[h], share), strict=True):
                for j in kept:
                    mask[b, h, torch.tensor(rows)[:, None], cuts[j]] = True
    return mask


@settings(max_examples=15)
@given(
    tokens=st.integers(1, 50),
    heads=st.integers(1, 5),
    block=st.integers(1, 9),
    sparsity=st.sampled_from((0.0, 0.2, 0.6, 0.8, 1.0)),
    recall=st.sampled_from((0.2, 0.5, 0.8)),
)
def test_is_its_definition(
    tokens: int, heads: int, block: int, sparsity: float, recall: float
) -> None:
    config = AdaSpaConfig(sparsity=sparsity, block=block, recall=recall)
    sharpness = torch.linspace(0.5, 6, heads, dtype=torch.float64).view(heads, 1, 1)
    query = normal(2, heads, tokens, 5, dtype=torch.float64) * sharpness
    key = normal(2, heads, tokens, 5, seed=1, dtype=torch.float64)
    mask = plan_mask(query, key, config, VideoLayout(1, 1, tokens))
    assert torch.equal(mask, definition(query, key, config))


def test_a_mask_lives_until_the_next_search() -> None:
    method = AdaSpaConfig(block=8).start(Run(steps=20, heads=2))
    masks: list[Tensor | None] = []
    counted = []
    for step in range(20):
        query, key = (normal(1, 2, 60, 4, seed=40 * s + step) for s in (0, 1))
        call = Call(step, 0, count=lambda phase, share: counted.append((phase, share)))
        decision = method.plan(query, key, key, call)
        masks.append(decision.keep if isinstance(decision, BlockPlan) else None)
        if isinstance(decision, Dense):
            assert decision.planned
    assert [mask is None for mask in masks] == [step < 4 for step in range(20)]
    changes = [s for s in range(1, 20) if masks[s] is not None and masks[s] is not masks[s - 1]]
    assert changes == [4, 12]  # steps 10 and 30 of 50
    assert counted == [("search", 0.5)] * 2


def test_masks_belong_to_their_place() -> None:
    method = AdaSpaConfig(dense_steps=0, block=8).start(Run(steps=50, heads=2))
    assert isinstance(method, AdaSpaMethod) and method.state_bytes == 0
    for seed, place in enumerate(
        [{}, {"branch": "uncond"}, {"stage": 1}, {"sample": 1}, {"head_offset": 2}]
    ):
        query, key = (normal(1, 2, 60, 4, seed=2 * seed + s) for s in (0, 1))
        plan = method.plan(query, key, key, Call(11, 0, **place))  # type: ignore[arg-type]
        again = method.plan(key, query, key, Call(12, 0, **place))  # type: ignore[arg-type]
        assert isinstance(plan, BlockPlan) and isinstance(again, BlockPlan)
        assert again.keep is plan.keep
        assert method.state_bytes == (seed + 1) * 2 * 8 * 8
    both = normal(2, 2, 60, 4)
    wider = method.plan(both, both, both, Call(12, 0))  # another batch: a new search
    assert isinstance(wider, BlockPlan) and wider.keep.shape[0] == 2


def test_text_padding_and_two_videos() -> None:
    config = AdaSpaConfig(block=16, search_steps=(0, 17, 34))
    session_checks(config)
    session = Session(config.always_sparse(), steps=3, layers=1, heads=2)
    tokens = normal(1, 2, 40, 4)
    session.attend(tokens, tokens, tokens, step=0, layer=0)
    assert session.stats().work["search"] == 0.5


@pytest.mark.parametrize(
    ("setting", "value"),
    [("sparsity", 2), ("recall", -1), ("block", 0), ("search_steps", (60,)), ("search_steps", 3)],
)
def test_bad_values_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{setting} must be .* got "):
        AdaSpaConfig(**{setting: value})
