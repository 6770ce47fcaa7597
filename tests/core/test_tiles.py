import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import normal

from svoo import VideoLayout
from svoo.core.tiles import (
    PerGrid,
    TokenBlocks,
    axes_order,
    cut_evenly,
    first_frame_last,
    tile_counts,
    tile_grid,
    window_mask,
)

CPU = torch.device("cpu")
sides = st.tuples(*[st.integers(1, 7)] * 3)


@settings(max_examples=30)
@given(grid=sides, tile=sides)
def test_tiles_are_cut_in_raster_order(
    grid: tuple[int, int, int], tile: tuple[int, int, int]
) -> None:
    expected_order, expected_sizes, tiles = [], [], []
    for t in range(0, grid[0], tile[0]):
        for h in range(0, grid[1], tile[1]):
            for w in range(0, grid[2], tile[2]):
                inside = [
                    (a * grid[1] + b) * grid[2] + c
                    for a in range(t, min(t + tile[0], grid[0]))
                    for b in range(h, min(h + tile[1], grid[1]))
                    for c in range(w, min(w + tile[2], grid[2]))
                ]
                expected_order += inside
                expected_sizes.append(len(inside))
                tiles.append(inside)
    blocks = tile_grid(grid, tile, CPU)
    assert blocks.order is not None and blocks.order.tolist() == expected_order
    assert list(blocks.sizes) == expected_sizes and blocks.tokens == math.prod(grid)
    assert blocks.count == math.prod(tile_counts(grid, tile))
    for place, inside in enumerate(tiles):
        assert (blocks.labels[inside] == place).all()
        assert blocks.members[place, : len(inside)].tolist() == inside
        assert blocks.is_member[place].sum() == len(inside)
    tokens = normal(2, 2, blocks.tokens, 3, dtype=torch.float64)
    means = torch.stack([tokens[:, :, inside].mean(dim=2) for inside in tiles], dim=2)
    torch.testing.assert_close(blocks.means(tokens), means)
    keep = torch.eye(blocks.count, dtype=torch.bool).expand(2, 2, -1, -1)
    labels = blocks.labels
    mask = (labels[:, None] == labels).expand(2, 2, -1, -1)
    assert torch.equal(blocks.plan(keep).to_dense_mask(), mask)


@pytest.mark.parametrize(("tokens", "sizes"), [(1, (1,)), (8, (4, 4)), (9, (4, 4, 1))])
def test_even_blocks(tokens: int, sizes: tuple[int, ...]) -> None:
    blocks = cut_evenly(tokens, 4, CPU)
    assert blocks.sizes == sizes
    keep = torch.eye(len(sizes), dtype=torch.bool)[None, None]
    plan = blocks.plan(keep)
    assert plan.query_order is None and plan.query_tokens == tokens
    assert blocks.labels.tolist() == [token // 4 for token in range(tokens)]
    half = normal(1, 1, tokens, 2, dtype=torch.bfloat16)
    means = [part.float().mean(dim=2) for part in half.split(4, dim=2)]
    torch.testing.assert_close(blocks.means(half), torch.stack(means, dim=2))


def test_orders_of_the_axes() -> None:
    grid = 2, 3, 4
    order = axes_order(grid, (1, 2, 0), CPU)
    expected = [(t * 3 + h) * 4 + w for h in range(3) for w in range(4) for t in range(2)]
    assert order.tolist() == expected
    assert axes_order(grid, (0, 1, 2), CPU).tolist() == list(range(24))
    assert first_frame_last(None, grid, CPU).tolist() == [*range(12, 24), *range(12)]
    rest = torch.arange(11, -1, -1)
    assert first_frame_last(rest, grid, CPU).tolist() == [*range(23, 11, -1), *range(12)]
    assert first_frame_last(None, (1, 3, 4), CPU).tolist() == list(range(12))


@settings(max_examples=30)
@given(counts=st.tuples(*[st.integers(1, 5)] * 3), window=st.tuples(*[st.integers(1, 9)] * 3))
def test_windows(counts: tuple[int, int, int], window: tuple[int, int, int]) -> None:
    tiles = [
        (t, h, w) for t in range(counts[0]) for h in range(counts[1]) for w in range(counts[2])
    ]

    def sees(query: tuple[int, ...], key: tuple[int, ...]) -> bool:
        for n, size, q, k in zip(counts, window, query, key, strict=True):
            half = size // 2
            if 2 * half + 1 >= n:
                continue  # the window is as wide as the axis
            if abs(min(max(q, half), n - 1 - half) - k) > half:
                return False
        return True

    mask = window_mask(counts, window, CPU)
    assert mask.tolist() == [[sees(query, key) for key in tiles] for query in tiles]


def test_things_are_made_once_per_grid() -> None:
    made = []

    def make(grid: tuple[int, int, int], device: torch.device) -> TokenBlocks:
        made.append(grid)
        return tile_grid(grid, (2, 2, 2), device)

    store = PerGrid(make)
    assert store.nbytes == 0
    first = store.at(VideoLayout(2, 3, 4), CPU)
    assert store.at(VideoLayout(2, 3, 4, text=5), CPU) is first
    assert store.at(VideoLayout(4, 3, 2), CPU) is not first
    assert made == [(2, 3, 4), (4, 3, 2)] and store.nbytes == 2 * 24 * 8
