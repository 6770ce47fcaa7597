import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from svoo import VideoLayout
from svoo.core.morton import morton_order

CPU = torch.device("cpu")


@pytest.mark.parametrize("sides", [(1, 1, 1), (1, 1, 9), (5, 6, 7), (2, 8, 3)])
def test_sorts_by_interleaved_bits(sides: tuple[int, int, int]) -> None:
    def code(place: int) -> int:
        frame, row, column = (int(part) for part in np.unravel_index(place, sides))
        parts = (column, row, frame)
        return sum((parts[bit % 3] >> bit // 3 & 1) << bit for bit in range(63))

    order = morton_order(VideoLayout(*sides), CPU)
    assert order.tolist() == sorted(range(int(np.prod(sides))), key=code)


def test_is_theirs(goldens: Path) -> None:
    stored = np.load(goldens / "sol-morton.npz")
    for name in ("5x6x7", "3x16x16"):
        frames, height, width = (int(side) for side in name.split("x"))
        order = morton_order(VideoLayout(frames, height, width), CPU)
        assert np.array_equal(order.numpy(), stored[f"order_{name}"])
    digest = json.loads(str(stored["meta_json"]))["sha256_int32_little_endian"]["21x45x80"]
    order = morton_order(VideoLayout(21, 45, 80), CPU)
    assert hashlib.sha256(order.numpy().astype("<i4").tobytes()).hexdigest() == digest
