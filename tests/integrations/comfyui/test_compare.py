import math

import numpy as np
import pytest
import torch
from making import normal
from skimage.metrics import peak_signal_noise_ratio

from integrations.comfyui.compare import compare_images, compare_latents
from svoo.errors import ShapeError
from svoo.metrics.compare import compare_videos


def test_videos_have_svoos_figures() -> None:
    first = normal(3, 40, 48, 3).sigmoid()
    second = (first + 0.05 * normal(3, 40, 48, 3, seed=1)).clamp(0, 1)
    ratio, likeness, text = compare_images(first, second)
    expected = compare_videos(first.numpy(), second.numpy())
    assert (ratio, likeness) == (expected.psnr, expected.ssim)
    assert text == f"videos: PSNR {ratio:.2f} dB, SSIM {likeness:.4f}"


@pytest.mark.parametrize("shape", [(1, 16, 3, 12, 14), (2, 4, 12, 14)])
def test_the_peak_of_latents_is_the_range_of_the_first(shape: tuple[int, ...]) -> None:
    first = normal(*shape) * 7
    second = first + normal(*shape, seed=1)
    ratio, likeness, _ = compare_latents(first, second)
    span = float(first.max() - first.min())
    expected = peak_signal_noise_ratio(np.asarray(first), np.asarray(second), data_range=span)
    assert ratio == pytest.approx(expected, abs=1e-4) and 0 < likeness < 1


def test_equal_small_and_constant_latents() -> None:
    zeros = torch.zeros(1, 16, 3, 4, 4)
    ratio, likeness, text = compare_latents(zeros, zeros)
    assert math.isinf(ratio) and math.isnan(likeness)
    assert text == "latents: PSNR equal, no SSIM: it needs at least 11 rows and columns"


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ShapeError, match="the videos differ in shape"):
        compare_images(torch.zeros(2, 12, 12, 3), torch.zeros(3, 12, 12, 3))
    with pytest.raises(ShapeError, match="the latents differ in shape"):
        compare_latents(torch.zeros(1, 4, 12, 12), torch.zeros(1, 4, 12, 13))
