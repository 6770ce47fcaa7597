from dataclasses import replace

import pytest

from svoo.kernels.triton.tiles import Tile
from tools.static_time import CARDS, Work, dense_milliseconds, estimate, tile_cycles, work_of

H100 = next(card for card in CARDS if card.name == "H100 SXM")
ROWS = [
    {"name": name, "arch": "sm_90", "instructions": 437}
    for name in ("attention, far terms and groups", "far field", "assign, features")
]
WORK = Work(1000.0, 10.0, 50.0, 256, 1024, 75_600)


def test_peaks_are_the_vendors() -> None:
    """TFLOP/s of dense bfloat16 products with float32 sums, from the data sheets."""
    told = {"A100": 312, "RTX 3090": 71, "RTX 4090": 165, "H100 SXM": 989, "B200": 2250}
    for card in CARDS:
        if card.name in told:
            assert card.peak / 1e12 == pytest.approx(told[card.name], rel=0.01)


def test_a_tile_by_hand() -> None:
    """128 x 64 x 128: 1,024 cycles of the tensor cores, 437 x 8 / 4 to start instructions."""
    assert tile_cycles(Tile(128, 64, 8, 7), 437, H100) == (1024, 1024 + 874)
    assert tile_cycles(Tile(128, 64, 8, 7), 1000, H100)[0] == 2000  # then starting is the bound


def test_dense_at_the_published_rate() -> None:
    dense = dense_milliseconds(H100, 75_600, 40)
    assert dense == pytest.approx(1e3 * 4 * 40 * 75_600**2 * 128 / 740e12, rel=0.01)
    assert dense_milliseconds(replace(H100, flash=None), 75_600, 40) is None


def test_more_work_takes_longer_and_heads_add_up() -> None:
    one, two = (estimate(WORK, H100, heads, ROWS) for heads in (1, 2))
    assert 0 < one.least < one.most
    assert two.least == pytest.approx(2 * one.least)
    more = estimate(replace(WORK, kept_tiles=2000.0), H100, 1, ROWS)
    assert more.least - one.least == pytest.approx(1e3 * 1000 * 1024 / (132 * 1.83e9))
    finer = estimate(replace(WORK, query_blocks=512), H100, 1, ROWS)
    assert finer.least > one.least  # what blocks see takes memory's time


def test_all_pairs_in_full_tiles_are_dense() -> None:
    work = work_of(1.0, 1.0, (1, 1), 6400, Tile(128, 64, 8, 7), 0.0)
    assert work.kept_tiles == 50 * 100
    assert work.far_tiles == pytest.approx(100, rel=0.01)
