import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import gamma

from svoo.errors import ModelError
from svoo.metrics import brisque
from svoo.metrics.brisque import Brisque, _fit, read_ranges, read_regression


def model() -> Brisque:
    """A regression with two support vectors."""
    text = "svm_type epsilon_svr\ngamma 0.05\nrho -2.5\nSV\n3 1:0.5 36:-1\n-1 2:1\n"
    ranges = pickle.dumps({"min_": [0.0] * 36, "max_": [4.0] * 36})
    return Brisque(read_regression(text) | read_ranges(ranges))


def draw(shape: float, left: float, right: float) -> NDArray[np.float64]:
    """Draw from an asymmetric generalised Gaussian."""
    chance = np.random.default_rng(0)
    sizes = chance.gamma(1 / shape, size=200_000) ** (1 / shape)
    width = np.sqrt(gamma(1 / shape) / gamma(3 / shape))
    right_side = chance.uniform(size=len(sizes)) < right / (left + right)
    return np.asarray(np.where(right_side, sizes * right * width, -sizes * left * width))


@pytest.mark.parametrize(("shape", "left", "right"), [(2.0, 1.0, 1.0), (0.8, 0.5, 1.5)])
def test_the_fit_finds_what_was_drawn(shape: float, left: float, right: float) -> None:
    found = _fit(draw(shape, left, right))
    assert found[0] == pytest.approx(shape, rel=0.03)
    assert found[2:] == pytest.approx((left, right), rel=0.02)


def test_the_regression_is_a_sum_of_bells() -> None:
    weights = read_regression("gamma 0.05\nrho -2.5\nSV\n3 1:0.5 36:-1\n-1 2:1\n")
    assert weights["coefficients"].tolist() == [3, -1]
    assert weights["vectors"][0, [0, 35]].tolist() == [0.5, -1]
    assert weights["constants"].tolist() == [0.05, -2.5]


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_picture_of_one_colour_has_a_finite_score(value: float) -> None:
    assert np.isfinite(model().score(np.full((16, 24, 3), value)))


def test_weights_that_would_run_something_are_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "trap"),)

    with pytest.raises(ModelError, match=r"ask for posix\.mkdir"):
        read_ranges(pickle.dumps({"min_": Trap()}))
    assert list(tmp_path.iterdir()) == []


def test_fetched_weights_score_photographs_as_the_package_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known values: brisque 0.2.0 itself, with OpenCV 5.0 and libsvm 3.37."""
    from skimage import data

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelError, match="svoo weights scores"):
        Brisque.load()
    try:
        brisque.fetch_weights()
    except ModelError as error:
        pytest.skip(f"no network: {str(error).splitlines()[0]}")
    score = Brisque.load().score
    photo = data.astronaut() / 255
    assert score(photo) == pytest.approx(10.7949, abs=0.01)
    assert score(data.coffee() / 255) == pytest.approx(3.0479, abs=0.01)
    noise = np.random.default_rng(0).normal(scale=0.2, size=photo.shape)
    assert score((photo + noise).clip(0, 1)) > score(photo) + 10  # lower is better
