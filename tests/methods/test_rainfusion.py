import math
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

from svoo import VideoLayout
from svoo.errors import ConfigError
from svoo.methods.rainfusion import RainFusionConfig, band_recall


def recall_by_definition(query: Tensor, key: Tensor, width: int) -> float:
    """Mass in the band of one head, query and key `[n, D]`."""
    weights = (query @ key.T / math.sqrt(query.shape[1])).softmax(dim=-1)
    found = 0.0
    for row in range(len(query)):
        for column in range(len(key)):
            found += float(weights[row, column]) if abs(row - column) <= width else 0.0
    return found / len(query)


def definition(query: Tensor, key: Tensor, grid: Any, config: RainFusionConfig) -> Tensor:
    """Which pairs are kept, bool `[B, H, N, N]`."""
    frames, height, width = grid
    frame, later = height * width, frames - 1
    share = round(1 - math.sqrt(config.sparsity), 2)
    mask = torch.zeros(*query.shape[:3], key.shape[2], dtype=torch.bool)
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            q, k = query[b, h], key[b, h]
            mask[b, h, :frame] = True
            mask[b, h, :, :frame] = True
            if not later:
                continue
            reach = int(share * frame)
            first = slice(frame, 2 * frame)
            local = recall_by_definition(q[first], k[first], reach)
            spread = recall_by_definition(q[frame::later], k[frame::later], reach)
            if local > config.local or local > spread:
                order = [frame * (t + 1) + p for p in range(frame) for t in range(later)]
                blocks = math.floor(share * frame / config.block) * later
            else:
                order = list(range(frame, frames * frame))
                blocks = math.floor(share * later * frame / config.block)
            for i, row in enumerate(order):
                for j, column in enumerate(order):
                    near = abs(i // config.block - j // config.block) <= max(1, blocks) - 1
                    mask[b, h, row, column] |= near
    return mask


@settings(max_examples=10)
@given(
    grid=st.tuples(*[st.integers(1, 4)] * 3),
    sparsity=st.sampled_from((0.1, 0.3, 0.64, 0.9)),
    block=st.integers(1, 5),
)
def test_is_its_definition(grid: Any, sparsity: float, block: int) -> None:
    config = RainFusionConfig(sparsity=sparsity, block=block)
    query, key = (normal(2, 2, math.prod(grid), 5, seed=s, dtype=torch.float64) for s in (0, 1))
    mask = plan_mask(query, key, config, VideoLayout(*grid))
    assert torch.equal(mask, definition(query, key, grid, config))


def test_keeps_what_their_code_keeps(goldens: Path) -> None:
    golden = Golden(goldens / "rainfusion1-5x24x32-s64.npz")
    config = RainFusionConfig(sparsity=golden.meta["sparsity"])
    assert config.bandwidth == golden.meta["bandwidth"]
    assert torch.equal(plan_mask(*golden.tokens, config, golden.layout), golden.mask())
    query, key = golden.tokens
    frame, reach, scale = 24 * 32, int(0.2 * 24 * 32), 1 / 4
    for name, part in (("local", slice(frame, 2 * frame)), ("global", slice(frame, None, 4))):
        found = band_recall(query[:, :, part], key[:, :, part], reach, scale)
        torch.testing.assert_close(found[0], golden[f"ratio_{name}"])


def test_a_band_is_at_least_the_diagonal() -> None:
    config = RainFusionConfig(sparsity=0.99)  # theirs: a band of -1 blocks
    tokens = normal(1, 1, 24, 4)
    mask = plan_mask(tokens, tokens, config, VideoLayout(4, 2, 3))
    assert bool(mask.diagonal(dim1=2, dim2=3).all())


def test_text_padding_and_two_videos() -> None:
    session_checks(RainFusionConfig(sparsity=0.7, block=8))


@pytest.mark.parametrize(("setting", "value"), [("sparsity", 2), ("local", -1), ("block", 0)])
def test_bad_values_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{setting} must be .* got "):
        RainFusionConfig(**{setting: value})
