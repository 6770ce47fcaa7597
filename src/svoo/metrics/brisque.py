"""BRISQUE, a score of a picture without reference from the statistics of natural scenes (Mittal et
al., 2012); lower is better. Weights fetched on demand.

The picture less its local mean over its local deviation is taken for a draw from an asymmetric
generalised Gaussian, and so are products of neighbours; at two sizes. A support-vector regression
turns the 36 fitted numbers into a score.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save as save_tensors
from torch import Tensor
from torch.nn.functional import interpolate

from svoo.errors import ModelError
from svoo.metrics.fetching import Package, fetch_members, load_stored, stored
from svoo.storage import write_atomically

_PACKAGE = Package(
    "brisque==0.2.0", "56f1839e5179a294d0598d63b2ee488fcbedeac7cee3e32c7c8d06c30a6269e1"
)
_FOLDER = "brisque/models/"
_NAME, _COMMAND = "brisque", "svoo weights scores"
_TENSORS = ("coefficients", "vectors", "low", "high", "constants")
_GREY = (0.2125, 0.7154, 0.0721)
_WINDOW, _SIGMA = 7, 7 / 6
_NEIGHBOURS = ((0, 1), (1, 0), (1, 1), (1, -1))
_SHAPES = (0.05, 10.0)  # that are fitted

Picture = NDArray[np.float64]


def fetch_weights() -> Path:
    """Fetch the weights with pip and store them in the user's cache; return where."""
    members = [_FOLDER + name for name in ("svm.txt", "normalize.pickle")]
    text, ranges = fetch_members(_PACKAGE, members, "the weights of BRISQUE")
    tensors = read_regression(text.decode()) | read_ranges(ranges)
    write_atomically(stored(_NAME), save_tensors(tensors))
    return stored(_NAME)


def read_regression(text: str) -> dict[str, Tensor]:
    """Return the regression of a libsvm file: coefficients, support vectors, gamma and rho."""
    head, _, body = text.partition("\nSV\n")
    facts = dict(line.split(maxsplit=1) for line in head.splitlines())
    coefficients, vectors = [], []
    for line in body.splitlines():
        first, *entries = line.split()
        vector = [0.0] * 36
        for number, value in (entry.split(":") for entry in entries):
            vector[int(number) - 1] = float(value)
        coefficients.append(float(first))
        vectors.append(vector)
    constants = [float(facts["gamma"]), float(facts["rho"])]
    return {
        "coefficients": torch.tensor(coefficients, dtype=torch.float64),
        "vectors": torch.tensor(vectors, dtype=torch.float64),
        "constants": torch.tensor(constants, dtype=torch.float64),
    }


class _NumbersOnly(pickle.Unpickler):
    """Admits plain lists of numbers: a pickle can name any function to be called."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 (pickle's signature)
        raise ModelError(
            f"the weights of BRISQUE ask for {module}.{name}: not what they should be"
        )


def read_ranges(data: bytes) -> dict[str, Tensor]:
    """Return the ranges that features are scaled from."""
    tree = _NumbersOnly(io.BytesIO(data)).load()
    return {
        name: torch.tensor([float(value) for value in tree[key]], dtype=torch.float64)
        for name, key in (("low", "min_"), ("high", "max_"))
    }


class Brisque:
    """The score of a picture."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        """Use these weights; `load` reads the stored ones."""
        self._weights = {name: value.numpy() for name, value in weights.items()}

    @classmethod
    def load(cls) -> Brisque:
        """Read the stored weights, or say how to get them."""
        return cls(load_stored(_NAME, _COMMAND, _TENSORS))

    def score(self, picture: NDArray[np.floating[Any]]) -> float:
        """Return the score of a picture `[height, width, 3]` in [0, 1]."""
        grey = picture.astype(np.float64) @ np.array(_GREY)
        half = interpolate(torch.from_numpy(grey)[None, None], scale_factor=0.5, mode="bicubic")
        features = np.array([*_features(grey), *_features(half[0, 0].numpy())])
        low, high = self._weights["low"], self._weights["high"]
        scaled = 2 * (features - low) / (high - low) - 1
        gamma, rho = self._weights["constants"]
        distances = np.square(self._weights["vectors"] - scaled).sum(axis=1)
        return float(self._weights["coefficients"] @ np.exp(-gamma * distances) - rho)


def _features(grey: Picture) -> list[float]:
    """Return the 18 numbers of a grey picture."""
    normal = _normalise(grey)
    shape, _, left, right = _fit(normal)
    numbers = [shape, (left**2 + right**2) / 2]
    rows, columns = normal.shape
    for down, across in _NEIGHBOURS:
        here = normal[: rows - down, max(0, -across) : columns - max(0, across)]
        there = normal[down:, max(0, across) : columns - max(0, -across)]
        shape, mean, left, right = _fit(here * there)
        numbers += [shape, mean, left**2, right**2]
    return numbers


def _normalise(grey: Picture) -> Picture:
    """Return the picture less its local mean, over its local deviation; black around it."""
    from scipy.signal import convolve2d

    offsets = np.arange(_WINDOW) - _WINDOW // 2
    line = np.exp(-np.square(offsets) / (2 * _SIGMA**2))
    kernel = np.outer(line, line) / line.sum() ** 2
    mean = convolve2d(grey, kernel, "same")
    square = convolve2d(grey**2, kernel, "same")
    normal: Picture = (grey - mean) / (np.sqrt(np.abs(square - mean**2)) + 1 / 255)
    return normal


def _fit(values: Picture) -> tuple[float, float, float, float]:
    """Return shape, mean and the deviations on both sides of an asymmetric generalised Gaussian,
    by its moments."""
    from scipy.optimize import brentq
    from scipy.special import gamma

    def deviation(side: Picture) -> float:
        return float(np.sqrt(np.mean(np.square(side)))) if side.size else 1e-12

    left, right = deviation(values[values < 0]), deviation(values[values >= 0])
    ratio = left / max(right, 1e-12)
    spread = np.mean(np.abs(values)) ** 2 / max(float(np.mean(np.square(values))), 1e-30)
    wanted = spread * (ratio**3 + 1) * (ratio + 1) / (ratio**2 + 1) ** 2

    def excess(shape: float) -> float:
        return float(gamma(2 / shape) ** 2 / (gamma(1 / shape) * gamma(3 / shape)) - wanted)

    if excess(_SHAPES[0]) > 0 or excess(_SHAPES[1]) < 0:
        shape = _SHAPES[0] if excess(_SHAPES[0]) > 0 else _SHAPES[1]
    else:
        shape = float(brentq(excess, *_SHAPES))
    width = float(np.sqrt(gamma(1 / shape) / gamma(3 / shape)))
    mean = (right - left) * width * float(gamma(2 / shape) / gamma(1 / shape))
    return shape, mean, left, right
