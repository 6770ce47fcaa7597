"""Proxies of VBench's dimensions: its aggregation on weights that small packages carry.

They are not VBench's scores and are never shown without the word proxy. For aesthetics nothing
was found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from svoo.metrics import brisque, efficientnet
from svoo.metrics.consistency import consistency, motion

SUBJECT = "subject consistency (proxy)"
BACKGROUND = "background consistency (proxy)"
IMAGING = "imaging quality (proxy, BRISQUE)"
MOTION = "motion"
_SIDE = 224
_LONGEST = 512
_AT_ONCE = 8  # frames


def fetch_weights() -> list[Path]:
    """Fetch the weights of all proxies; return where they are."""
    return [efficientnet.fetch_weights(), brisque.fetch_weights()]


class Proxies:
    """Scores of a video without reference; the weights are read once."""

    names = (SUBJECT, BACKGROUND, IMAGING, MOTION)

    def __init__(self) -> None:
        """Read the stored weights, or say how to get them."""
        self._net = efficientnet.EfficientNetLite0.load()
        self._brisque = brisque.Brisque.load()

    def __call__(self, frames: NDArray[np.floating[Any]]) -> dict[str, float]:
        """Return the proxies of frames `[frames, height, width, 3]` in [0, 1]."""
        pixels = np.asarray(frames, dtype=np.float32).clip(0, 1)
        pictures = torch.from_numpy(pixels).permute(0, 3, 1, 2) * 255
        views = {
            SUBJECT: _shorter_side(pictures, "bilinear"),
            BACKGROUND: _centre(_shorter_side(pictures, "bicubic")),
        }
        scores = {name: consistency(self._features(view)) for name, view in views.items()}
        seen = _at_most(pictures).permute(0, 2, 3, 1).numpy() / 255
        imaging = float(np.mean([self._brisque.score(picture) for picture in seen]))
        return {**scores, IMAGING: imaging, MOTION: motion(pixels)}

    def _features(self, pictures: Tensor) -> Tensor:
        return torch.cat([self._net.features(part) for part in pictures.split(_AT_ONCE)])


def _at_most(pictures: Tensor) -> Tensor:
    """Scale pictures whose longer side has more than 512 pixels down to that, as VBench does."""
    height, width = pictures.shape[2:]
    if max(height, width) <= _LONGEST:
        return pictures
    size = [int(length * _LONGEST / max(height, width)) for length in (height, width)]
    return interpolate(
        pictures, size=size, mode="bilinear", align_corners=False, antialias=False
    ).clamp(0, 255)


def _shorter_side(pictures: Tensor, mode: str) -> Tensor:
    """Scale pictures `[frames, 3, height, width]` so that the shorter side has 224 pixels, without
    antialiasing."""
    height, width = pictures.shape[2:]
    factor = _SIDE / min(height, width)
    size = [max(_SIDE, int(length * factor)) for length in (height, width)]
    return interpolate(pictures, size=size, mode=mode, align_corners=False).clamp(0, 255)


def _centre(pictures: Tensor) -> Tensor:
    height, width = pictures.shape[2:]
    top, left = (height - _SIDE) // 2, (width - _SIDE) // 2
    return pictures[:, :, top : top + _SIDE, left : left + _SIDE]
