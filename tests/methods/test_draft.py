import math
from pathlib import Path
from typing import Any

import pytest
import torch
from golden import Golden
from hypothesis import given, settings
from hypothesis import strategies as st
from making import normal
from methods_common import plan_mask, session_checks, tiles_of
from torch import Tensor

from svoo import BlockPlan, Call, Dense, Run, VideoLayout
from svoo.errors import ConfigError
from svoo.methods.draft import DraftAttentionConfig, keep_above


def definition(
    query: Tensor, key: Tensor, grid: tuple[int, ...], config: DraftAttentionConfig
) -> Tensor:
    """Which pairs are kept, bool `[B, H, N, N]`, one block after the other."""
    tiles = tiles_of(grid, (1, *config.pool))
    mask = torch.zeros(*query.shape[:3], key.shape[2], dtype=torch.bool)
    rank = int(config.sparsity * len(tiles) ** 2)
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            means = torch.stack([key[b, h, columns].mean(dim=0) for columns in tiles])
            draft = [
                (means @ query[b, h, rows].mean(dim=0) / math.sqrt(query.shape[3])).softmax(dim=0)
                for rows in tiles
            ]
            every = sorted(float(weight) for row in draft for weight in row)
            threshold = every[rank - 1] if rank else -1.0
            for rows, row in zip(tiles, draft, strict=True):
                kept = [tile for tile in range(len(tiles)) if float(row[tile]) >= threshold]
                for tile in kept or [int(row.argmax())]:
                    mask[b, h, torch.tensor(rows)[:, None], tiles[tile]] = True
    return mask


@settings(max_examples=15)
@given(
    grid=st.tuples(*[st.integers(1, 6)] * 3),
    pool=st.tuples(*[st.integers(1, 4)] * 2),
    sparsity=st.sampled_from((0.0, 0.3, 0.75, 0.9, 1.0)),
)
def test_is_its_definition(grid: Any, pool: Any, sparsity: float) -> None:
    config = DraftAttentionConfig(sparsity=sparsity, pool=pool)
    query, key = (normal(2, 2, math.prod(grid), 5, seed=s, dtype=torch.float64) for s in (0, 1))
    mask = plan_mask(query, key, config, VideoLayout(*grid))
    assert torch.equal(mask, definition(query, key, grid, config))


def test_keeps_what_their_code_keeps(goldens: Path) -> None:
    golden = Golden(goldens / "draft-pool8x16.npz")
    config = DraftAttentionConfig(sparsity=golden.meta["sparsity_ratio"])
    assert torch.equal(plan_mask(*golden.tokens, config, golden.layout), golden.mask())


def test_an_empty_row_keeps_its_best() -> None:
    draft = torch.tensor([[0.1, 0.9, 0.0], [0.3, 0.3, 0.4], [0.8, 0.1, 0.1]])[None, None]
    keep = keep_above(draft, 8 / 9)  # theirs leaves the second row without a block
    assert keep[0, 0].tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_text_padding_and_two_videos() -> None:
    session_checks(DraftAttentionConfig(sparsity=0.7, pool=(2, 3)))


def test_noisy_steps_stay_dense() -> None:
    notes: list[str] = []
    config = DraftAttentionConfig(dense_layers=0, pool=(2, 2))
    sigmas = torch.tensor([1.0, 0.95, 0.925, 0.5])
    tokens = normal(1, 1, 24, 4)
    call = [Call(step, 0, VideoLayout(2, 3, 4)) for step in range(5)]
    method = config.start(Run(steps=4, sigmas=sigmas, note=notes.append))
    decisions = [method.plan(tokens, tokens, tokens, here) for here in call]
    assert [isinstance(decision, Dense) for decision in decisions] == [1, 1, 0, 0, 0]
    assert all(d.planned for d in decisions if isinstance(d, Dense)) and notes == []
    unknown = config.start(Run(steps=4, note=notes.append))
    assert isinstance(unknown.plan(tokens, tokens, tokens, call[0]), BlockPlan)
    assert notes == ["draft: the noise levels are not known, so no step is dense for its noise"]
    always = config.always_sparse().start(Run(steps=4, sigmas=sigmas))
    assert isinstance(always.plan(tokens, tokens, tokens, call[0]), BlockPlan)


def test_settings_by_model() -> None:
    wan, hunyuan = map(DraftAttentionConfig.for_model, ("wan2.1-t2v-14b", "hunyuanvideo-t2v"))
    assert (wan.sparsity, wan.dense_sigma, wan.dense_layers) == (0.75, 0.925, 1)
    assert (hunyuan.sparsity, hunyuan.dense_sigma, hunyuan.dense_layers) == (0.9, 0.945, 0)


@pytest.mark.parametrize(
    ("setting", "value"), [("sparsity", -0.1), ("pool", (8, 0)), ("dense_sigma", 925)]
)
def test_bad_values_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{setting} must be .* got "):
        DraftAttentionConfig(**{setting: value})


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.97])
def test_a_deterministic_torch_keeps_the_same(
    monkeypatch: pytest.MonkeyPatch, sparsity: float
) -> None:
    """Then the threshold is found by sorting."""
    draft = normal(2, 3, 9, 9).round(decimals=1)  # some are equal
    keep = keep_above(draft, sparsity)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert torch.equal(keep_above(draft, sparsity), keep)
