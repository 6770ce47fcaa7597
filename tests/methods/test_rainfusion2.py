import math
from pathlib import Path
from typing import Any, Literal

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
from svoo.methods.rainfusion2 import RainFusion2Config


def definition(query: Tensor, key: Tensor, grid: Any, config: RainFusion2Config) -> Tensor:
    """Which pairs are kept, bool `[B, H, N, N]`."""
    frame = grid[1] * grid[2]
    if config.windows == "frames":
        order = [token for window in tiles_of(grid, (1, 8, 8)) for token in window]
    else:
        rest = tiles_of((grid[0] - 1, *grid[1:]), (2, 8, 8))
        order = [token + frame for window in rest for token in window] + list(range(frame))
    blocks = [order[at : at + config.block] for at in range(0, len(order), config.block)]
    count = max(1, math.ceil((1 - config.sparsity) * len(blocks) - 1e-9))
    mask = torch.zeros(*query.shape[:3], key.shape[2], dtype=torch.bool)
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            means = torch.stack([key[b, h, columns].mean(dim=0) for columns in blocks])
            for rows in blocks:
                logits = means @ query[b, h, rows].mean(dim=0) / math.sqrt(query.shape[3])
                weights = logits.softmax(dim=0).tolist()
                least = sorted(weights, reverse=True)[count - 1]
                for columns, weight in zip(blocks, weights, strict=True):
                    forced = min(rows) < frame or min(columns) < frame
                    if forced or weight >= least:
                        mask[b, h, torch.tensor(rows)[:, None], columns] = True
    return mask


@settings(max_examples=15)
@given(
    grid=st.tuples(st.integers(1, 5), st.integers(1, 10), st.integers(1, 10)),
    sparsity=st.sampled_from((0.0, 0.3, 0.8, 1.0)),
    windows=st.sampled_from(("frames", "cubes")),
    block=st.integers(3, 40),
)
def test_is_its_definition(
    grid: Any, sparsity: float, windows: Literal["frames", "cubes"], block: int
) -> None:
    config = RainFusion2Config(sparsity=sparsity, windows=windows, block=block)
    query, key = (normal(2, 2, math.prod(grid), 5, seed=s, dtype=torch.float64) for s in (0, 1))
    mask = plan_mask(query, key, config, VideoLayout(*grid))
    assert torch.equal(mask, definition(query, key, grid, config))


@pytest.mark.parametrize(
    ("name", "windows"), [("mindie-4x16x24", "frames"), ("wan-5x16x16", "cubes")]
)
def test_keeps_what_their_code_keeps(
    goldens: Path, name: str, windows: Literal["frames", "cubes"]
) -> None:
    golden = Golden(goldens / f"rainfusion2-{name}-s80.npz")
    config = RainFusion2Config(sparsity=golden.meta["sparsity"], windows=windows)
    assert torch.equal(plan_mask(*golden.tokens, config, golden.layout), golden.mask())


@pytest.mark.parametrize("windows", ["frames", "cubes"])
def test_text_padding_and_two_videos(windows: Literal["frames", "cubes"]) -> None:
    session_checks(RainFusion2Config(windows=windows, block=16))


@pytest.mark.parametrize(
    ("setting", "value"), [("sparsity", 2), ("windows", "tiles"), ("block", 1.5)]
)
def test_bad_values_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{setting} must be .* got "):
        RainFusion2Config(**{setting: value})
