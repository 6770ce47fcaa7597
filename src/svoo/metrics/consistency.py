"""VBench's aggregation of a video's features, and a motion figure to read it with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from svoo.errors import ShapeError


def consistency(features: Tensor) -> float:
    """Return the mean over t = 2 .. T of (max(0, cos(f_{t-1}, f_t)) + max(0, cos(f_1, f_t))) / 2
    for features `[T, F]` of a video's frames. A frozen video has 1."""
    if features.ndim != 2 or len(features) < 2:
        raise ShapeError(
            f"consistency needs features [frames, F] of two frames or more: {list(features.shape)}"
        )
    unit = normalize(features.double(), dim=1)
    before = (unit[1:] * unit[:-1]).sum(dim=1).clamp(min=0)
    first = (unit[1:] * unit[:1]).sum(dim=1).clamp(min=0)
    return float(((before + first) / 2).mean())


def motion(frames: NDArray[np.floating[Any]]) -> float:
    """Return the mean absolute change of a pixel from one frame to the next, in [0, 1]."""
    return float(torch.from_numpy(np.asarray(frames, dtype=np.float32)).diff(dim=0).abs().mean())
