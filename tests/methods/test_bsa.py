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
from torch.nn.functional import cosine_similarity

from svoo import VideoLayout
from svoo.errors import ConfigError
from svoo.methods.bsa import BSAConfig


def decide(tokens: Tensor, share: float) -> Tensor:
    """The mean `[D]` of the tokens `[n, D]` of a tile that have a say."""
    middle = tokens[len(tokens) // 2]
    likeness = [float(cosine_similarity(token, middle, dim=0)) for token in tokens]
    ranked = sorted(range(len(tokens)), key=lambda token: likeness[token])
    return tokens[ranked[: max(1, math.ceil(share * len(tokens) - 1e-6))]].mean(dim=0)


def definition(query: Tensor, key: Tensor, grid: tuple[int, ...], config: BSAConfig) -> Tensor:
    """Which pairs are kept, bool `[B, H, N, N]`, one tile after the other."""
    tiles = tiles_of(grid, config.tile)
    mask = torch.zeros(*query.shape[:3], key.shape[2], dtype=torch.bool)
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            means = torch.stack([key[b, h, columns].mean(dim=0) for columns in tiles])
            for rows in tiles:
                mean = decide(query[b, h, rows], config.queries)
                weights = (means @ mean / math.sqrt(query.shape[3])).softmax(dim=0).tolist()
                before = 0.0
                ranked = sorted(range(len(tiles)), key=lambda tile: -weights[tile])
                for rank, tile in enumerate(ranked):
                    if before < config.mass or rank < config.least:
                        mask[b, h, torch.tensor(rows)[:, None], tiles[tile]] = True
                    before += weights[tile]
    return mask


@settings(max_examples=15)
@given(
    grid=st.tuples(*[st.integers(1, 6)] * 3),
    tile=st.tuples(*[st.integers(1, 4)] * 3),
    mass=st.sampled_from((0.2, 0.6, 0.9)),
    least=st.integers(1, 5),
    queries=st.sampled_from((0.1, 0.5, 0.8, 1.0)),
)
def test_is_its_definition(grid: Any, tile: Any, mass: float, least: int, queries: float) -> None:
    config = BSAConfig(mass=mass, least=least, queries=queries, tile=tile)
    query, key = (normal(2, 2, math.prod(grid), 5, seed=s, dtype=torch.float64) for s in (0, 1))
    mask = plan_mask(query, key, config, VideoLayout(*grid))
    assert torch.equal(mask, definition(query, key, grid, config))


def test_keeps_what_their_code_keeps(goldens: Path) -> None:
    golden = Golden(goldens / "bsa-8x8x8-k100-t90.npz")
    config = BSAConfig(
        mass=golden.meta["kv_cumulative_threshold"],
        least=golden.meta["min_kv_blocks"],
        queries=golden.meta["query_keep_ratio"],
    )
    assert torch.equal(plan_mask(*golden.tokens, config, golden.layout), golden.mask())


def test_text_padding_and_two_videos() -> None:
    session_checks(BSAConfig(mass=0.5, least=2, tile=(2, 2, 3)))


@pytest.mark.parametrize(
    ("setting", "value"), [("mass", -1), ("least", 0), ("queries", 2), ("tile", 4)]
)
def test_bad_values_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{setting} must be .* got "):
        BSAConfig(**{setting: value})
