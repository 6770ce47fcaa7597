"""How alike two latents or two videos are: PSNR and SSIM, with svoo's own metrics."""

from __future__ import annotations

import math

from torch import Tensor

from svoo.errors import ShapeError
from svoo.metrics.compare import SSIM_WINDOW, psnr, ssim


def compare_images(first: Tensor, second: Tensor) -> tuple[float, float, str]:
    """Compare videos `[frames, height, width, 3]` in [0, 1]: PSNR in dB, SSIM, and a text."""
    return _compare(first, second, "videos")


def compare_latents(first: Tensor, second: Tensor) -> tuple[float, float, str]:
    """Compare latents `[B, C, T, H, W]` or `[B, C, H, W]`; the peak of PSNR and SSIM is the range
    of the first. PSNR in dB, SSIM over the planes of all channels, and a text."""
    low, high = float(first.min()), float(first.max())
    scaled = [(side.float() - low) / ((high - low) or 1.0) for side in (first, second)]
    planes = [side.reshape(-1, *side.shape[-2:], 1) for side in scaled]
    return _compare(planes[0], planes[1], "latents")


def _compare(first: Tensor, second: Tensor, what: str) -> tuple[float, float, str]:
    """Compare `[planes, height, width, channels]` with peak 1."""
    if first.shape != second.shape:
        raise ShapeError(
            f"the {what} differ in shape: {list(first.shape)} and {list(second.shape)} "
            "[planes, height, width, channels]; compare two results of the same size"
        )
    one, other = (side.float().cpu().numpy() for side in (first, second))
    ratio = psnr(one, other)
    likeness, text = math.nan, f"no SSIM: it needs at least {SSIM_WINDOW} rows and columns"
    if min(one.shape[1:3]) >= SSIM_WINDOW:
        likeness = ssim(one, other)
        text = f"SSIM {likeness:.4f}"
    shown = "equal" if math.isinf(ratio) else f"{ratio:.2f} dB"
    return ratio, likeness, f"{what}: PSNR {shown}, {text}"
