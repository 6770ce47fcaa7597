"""How alike two videos are: PSNR, SSIM and, where its weights are at hand, LPIPS."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from svoo.errors import ModelError, ShapeError
from svoo.metrics.lpips import Lpips

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Video = NDArray[np.floating[Any]]

SSIM_WINDOW = 11
LPIPS_SIDE = 35  # smaller pictures leave nothing after AlexNet's pooling


@dataclass(frozen=True)
class Likeness:
    """PSNR in dB and SSIM (higher is more alike), LPIPS (lower is) or None with why it is not
    there."""

    psnr: float
    ssim: float
    lpips: float | None
    why_no_lpips: str | None = None


def compare_videos(first: NDArray[np.generic], second: NDArray[np.generic]) -> Likeness:
    """Compare videos `[frames, height, width, 3]` of the same shape, uint8 or floats in [0, 1]."""
    one, other = _as_floats(first, "first"), _as_floats(second, "second")
    if one.shape != other.shape:
        raise ShapeError(f"the videos differ in shape: {one.shape} and {other.shape}")
    distance, why = None, None
    try:
        if min(one.shape[1:3]) < LPIPS_SIDE:
            raise ModelError(f"pictures must have at least {LPIPS_SIDE} rows and columns")
        distance = lpips(one, other, Lpips.load())
    except ModelError as error:
        why = str(error)
    return Likeness(psnr(one, other), ssim(one, other), distance, why)


def psnr(first: Video, second: Video) -> float:
    """Return the peak signal-to-noise ratio in dB, the squared error taken over the whole
    video."""
    error = float(np.mean(np.square(first.astype(np.float64) - second)))
    return math.inf if error == 0 else -10 * math.log10(error)


def ssim(first: Video, second: Video) -> float:
    """Return the mean over frames of structural similarity, with the Gaussian window of Wang et
    al."""
    from skimage.metrics import structural_similarity

    if min(first.shape[1:3]) < SSIM_WINDOW:
        raise ShapeError(
            f"SSIM needs pictures of at least {SSIM_WINDOW} rows and columns, got "
            f"{first.shape[1]} x {first.shape[2]}"
        )
    values = [
        structural_similarity(
            one,
            other,
            data_range=1.0,
            channel_axis=-1,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
        )
        for one, other in zip(first, second, strict=True)
    ]
    return min(1.0, float(np.mean(values)))  # rounding in float32 may pass 1


def lpips(first: Video, second: Video, net: Lpips) -> float:
    """Return the mean over frames of the learned perceptual distance."""
    one, other = (torch.from_numpy(video).permute(0, 3, 1, 2) for video in (first, second))
    return float(net.distance(one, other).mean())


def _as_floats(video: NDArray[np.generic], name: str) -> NDArray[np.float32]:
    if video.ndim != 4 or video.shape[-1] != 3 or 0 in video.shape:
        raise ShapeError(
            f"the {name} video must be [frames, height, width, 3], got {list(video.shape)}"
        )
    if video.dtype == np.uint8:
        return video.astype(np.float32) / np.float32(255)
    floats = video.astype(np.float32)
    if not (floats.min() >= -1e-3 and floats.max() <= 1 + 1e-3):  # false for NaN too
        raise ShapeError(
            f"the {name} video must be uint8 or in [0, 1], got {floats.min()} to {floats.max()}"
        )
    return floats
