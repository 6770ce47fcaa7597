from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from svoo import VideoLayout
from svoo.core.bands import band_in_blocks, band_width, temporal_order


@given(
    tokens=st.integers(1, 60), block=st.integers(1, 9), reach=st.integers(-1, 70),
    sink=st.integers(0, 30),
)  # fmt: skip
def test_blocks_that_a_band_touches(tokens: int, block: int, reach: int, sink: int) -> None:
    found = band_in_blocks(tokens, block, reach, sink)
    places = torch.arange(tokens)
    mask = ((places[:, None] - places).abs() <= reach) | (places < sink)
    blocks = -(-tokens // block)
    for i in range(blocks):
        for j in range(blocks):
            rows, columns = (slice(n * block, (n + 1) * block) for n in (i, j))
            assert bool(found[i, j]) == (i == j or bool(mask[rows, columns].any()))


def test_time_becomes_the_fastest_axis() -> None:
    order = temporal_order(VideoLayout(3, 2, 1))
    assert order.tolist() == [0, 2, 4, 1, 3, 5]


def test_a_band_covers_its_density() -> None:
    width = band_width(1000, 0.3)
    places = torch.arange(1000)
    covered = ((places[:, None] - places).abs() <= width).double().mean()
    assert float(covered) == pytest.approx(0.3, abs=0.002)
    assert band_width(1000, 0.3, text=150) == 0.0 and band_width(10, 1.0) == 10


def test_widths_are_theirs(goldens: Path) -> None:
    with np.load(goldens / "svg1-widths.npz") as golden:
        for case in range(len(golden["case_name"])):
            frame, text = int(golden["frame_size"][case]), int(golden["context_length"][case])
            tokens = int(golden["num_frame"][case]) * frame + text
            width = band_width(tokens, float(golden["sparsity_arg"][case]), text)
            assert width / frame == pytest.approx(golden["multiplier_frames"][case])
            rounded = -(-width // 128) if golden["rounding"][case] == "ceil" else width // 128
            assert rounded * 128 == golden["window_tokens"][case]
