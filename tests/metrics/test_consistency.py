import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from svoo.core.random import seeded
from svoo.errors import ShapeError
from svoo.metrics.consistency import consistency, motion


@given(frames=st.integers(2, 9), size=st.integers(1, 5), seed=st.integers(0, 99))
def test_it_is_the_formula(frames: int, size: int, seed: int) -> None:
    features = torch.randn(frames, size, generator=seeded(seed))

    def cosine(one: int, other: int) -> float:
        first, second = features[one].tolist(), features[other].tolist()
        dot = sum(a * b for a, b in zip(first, second, strict=True))
        return float(dot / (math.hypot(*first) * math.hypot(*second)))

    terms = [(max(0, cosine(t - 1, t)) + max(0, cosine(0, t))) / 2 for t in range(1, frames)]
    assert consistency(features) == pytest.approx(sum(terms) / len(terms), abs=1e-5)


def test_a_frozen_video_has_one_and_does_not_move() -> None:
    assert consistency(torch.ones(5, 7)) == pytest.approx(1.0)
    frames = np.zeros((3, 4, 4, 3))
    assert motion(frames) == 0
    frames[1] = 1
    assert motion(frames) == 1
    with pytest.raises(ShapeError, match="two frames or more"):
        consistency(torch.ones(1, 7))
