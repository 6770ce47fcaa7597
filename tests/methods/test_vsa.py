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

from svoo import VideoLayout
from svoo.errors import ConfigError
from svoo.methods.vsa import VSAConfig


def definition(query: Tensor, key: Tensor, grid: tuple[int, ...], config: VSAConfig) -> Tensor:
    """Which pairs are kept, bool `[B, H, N, N]`, one tile after the other."""
    tiles = tiles_of(grid, config.tile)
    count = max(1, math.ceil((1 - config.sparsity) * len(tiles) - 1e-9))
    mask = torch.zeros(*query.shape[:3], key.shape[2], dtype=torch.bool)
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            for rows in tiles:
                mean = query[b, h, rows].mean(dim=0)
                scores = [float(mean @ key[b, h, columns].mean(dim=0)) for columns in tiles]
                ranked = sorted(range(len(tiles)), key=lambda tile: -scores[tile])
                for tile in ranked[:count]:
                    mask[b, h, torch.tensor(rows)[:, None], tiles[tile]] = True
    return mask


@settings(max_examples=15)
@given(
    grid=st.tuples(*[st.integers(1, 6)] * 3),
    tile=st.tuples(*[st.integers(1, 4)] * 3),
    sparsity=st.sampled_from((0.0, 0.3, 0.7, 0.9, 1.0)),
)
def test_is_its_definition(grid: Any, tile: Any, sparsity: float) -> None:
    config = VSAConfig(sparsity=sparsity, tile=tile)
    query, key = (normal(2, 2, math.prod(grid), 5, seed=s, dtype=torch.float64) for s in (0, 1))
    mask = plan_mask(query, key, config, VideoLayout(*grid))
    assert torch.equal(mask, definition(query, key, grid, config))


@pytest.mark.parametrize("name", ["vsa-8x12x16-s75", "vsa-6x10x14-ragged-s80"])
def test_keeps_what_their_code_keeps(goldens: Path, name: str) -> None:
    golden = Golden(goldens / f"{name}.npz")
    config = VSAConfig(sparsity=golden.meta["sparsity"], tile=tuple(golden.meta["tile"]))
    assert torch.equal(plan_mask(*golden.tokens, config, golden.layout), golden.mask())


def test_text_padding_and_two_videos() -> None:
    session_checks(VSAConfig(sparsity=0.7, tile=(2, 2, 2)))


@pytest.mark.parametrize(
    ("setting", "value"), [("sparsity", 1.5), ("tile", (4, 4)), ("tile", (4, 4, 0))]
)
def test_bad_values_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{setting} must be .* got "):
        VSAConfig(**{setting: value})
