from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from svoo.metrics.brisque import Brisque
from svoo.metrics.efficientnet import EfficientNetLite0
from svoo.metrics.proxies import BACKGROUND, IMAGING, MOTION, SUBJECT, Proxies


class Net:
    """Features are the mean colour of each quarter."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def features(self, pictures: Tensor) -> Tensor:
        self.shapes.append(tuple(pictures.shape[1:]))
        return torch.nn.functional.adaptive_avg_pool2d(pictures, 2).flatten(1)


class Judge:
    def score(self, picture: NDArray[np.floating[Any]]) -> float:
        return float(picture.mean())


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    found = Net()
    monkeypatch.setattr(EfficientNetLite0, "load", lambda: found)
    monkeypatch.setattr(Brisque, "load", Judge)
    return found


def test_every_score_but_motion_says_proxy(net: Net) -> None:
    video = np.random.default_rng(0).uniform(size=(3, 32, 64, 3))
    scores = Proxies()(video)
    assert list(scores) == [SUBJECT, BACKGROUND, IMAGING, MOTION]
    assert all("proxy" in name for name in scores if name != MOTION)
    assert scores[IMAGING] == pytest.approx(video.mean(), abs=1e-6)
    assert net.shapes == [(3, 224, 448), (3, 224, 224)]  # no crop; a crop


@pytest.mark.usefixtures("net")
def test_frozen_is_consistent_and_flicker_is_not() -> None:
    chance = np.random.default_rng(0)
    frozen = np.repeat(chance.uniform(size=(1, 48, 48, 3)), 4, axis=0)
    flicker = frozen.copy()
    flicker[1::2, :, :24] *= 0.2
    still, moving = Proxies()(frozen), Proxies()(flicker)
    assert still[SUBJECT] == pytest.approx(1) and still[MOTION] == 0
    assert moving[SUBJECT] < 0.97 and moving[BACKGROUND] < 0.97 and moving[MOTION] > 0.1
