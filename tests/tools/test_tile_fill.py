import pytest
import torch

from svoo import BlockPlan, Call, FarTerms, Run
from svoo.kernels.triton.tiles import Tile
from tools.static_time import Work
from tools.tile_fill import Point, Tiles, WatchConfig, at_error, count_tiles, random_like

TILE = Tile(128, 64, 8, 7)


def plan_of(queries: list[int], keys: list[int], keep: torch.Tensor) -> BlockPlan:
    far = FarTerms(~keep, torch.zeros(keep.shape), torch.zeros(*keep.shape, 4))
    sizes = torch.tensor(queries).view(1, 1, -1), torch.tensor(keys).view(1, 1, -1)
    return BlockPlan(None, None, *sizes, keep, far)


def test_whole_tiles_are_full() -> None:
    keep = torch.tensor([[True, False], [True, True]]).view(1, 1, 2, 2)
    found = count_tiles(plan_of([128, 256], [64, 320], keep), TILE, tokens=384)
    assert (found.rows, found.columns, found.fill) == (1, 1, 1)
    assert found.work.kept_tiles == 1 * 1 + 2 * 6
    assert found.work.term_tiles == 1  # of the block that the first one leaves out
    assert found.work.far_tiles == 1 * (1 + 5)


def test_ragged_blocks_by_hand() -> None:
    """70 queries take a tile of 128; 20 and 50 keys take 2 + 4 pieces of 16: two tiles of 64."""
    keep = torch.ones(1, 1, 1, 2, dtype=torch.bool)
    found = count_tiles(plan_of([70], [20, 50], keep), TILE, tokens=70)
    assert found.rows == pytest.approx(70 / 128)
    assert found.columns == pytest.approx(70 / 128)
    assert found.fill == pytest.approx(70 * 70 / (128 * 128))
    scaled = count_tiles(plan_of([70], [20, 50], keep), TILE, tokens=700)
    assert scaled.fill == pytest.approx(700 * 700 / (768 * 768), rel=0.05)
    equal = count_tiles(plan_of([70], [20, 50], keep), TILE, (128, 64), tokens=128)
    assert equal.fill == 1


def test_the_place_of_an_error_between_two_points() -> None:
    tiles = Tiles(Work(1.0, 1.0, 1.0, 1, 1, 1), 1, 1, 1)
    points = [Point(error, 0.1, tiles) for error in (0.4, 0.2, 0.1)]
    for error, share, before in ((0.3, 0.5, 0), (0.1, 1.0, 1)):
        found = at_error(points, error)
        assert found is not None
        assert found[0] == pytest.approx(share) and found[1] is points[before]
    assert at_error(points, 0.05) is None


@pytest.mark.parametrize(("layers", "heads", "size"), [(6, 4, 32), (7, 2, 64)])
def test_tokens_are_watched_in_any_model(layers: int, heads: int, size: int) -> None:
    config = WatchConfig()
    method = config.start(Run(steps=2, layers=layers, heads=heads))
    sides = [torch.full((2, heads, 10, size), float(layer)) for layer in range(layers)]
    for step in range(2):
        for layer, side in enumerate(sides):
            method.plan(side, side, side, Call(step, layer))
    assert [float(query[0, 0, 0, 0]) for query, _, _ in config.seen] == [2, layers - 2]
    ((query, _, value),) = random_like(config.seen)
    assert query.shape == value.shape == (1, heads, 10, size)
    assert not torch.equal(query, value)
