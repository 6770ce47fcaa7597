import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from metrics.test_lpips import random_checkpoint
from safetensors.torch import save_file

from svoo.errors import ShapeError
from svoo.metrics import lpips as lpips_module
from svoo.metrics.compare import compare_videos, psnr, ssim


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def video(seed: int = 0, frames: int = 3, height: int = 36, width: int = 48) -> np.ndarray:
    return np.random.default_rng(seed).uniform(size=(frames, height, width, 3)).astype(np.float32)


def test_psnr_is_its_formula() -> None:
    first = np.full((2, 4, 4, 3), 0.5, dtype=np.float32)
    assert psnr(first, first + np.float32(0.1)) == pytest.approx(20, abs=1e-4)
    assert psnr(first, first) == math.inf


def ssim_by_definition(first: np.ndarray, second: np.ndarray) -> float:
    """Wang et al. 2004 on one channel: an 11 x 11 Gaussian window, where it fits."""
    line = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
    window = np.outer(line, line) / line.sum() ** 2
    values = []
    for i in range(first.shape[0] - 10):
        for j in range(first.shape[1] - 10):
            x, y = first[i : i + 11, j : j + 11], second[i : i + 11, j : j + 11]
            mx, my = (window * x).sum(), (window * y).sum()
            vx, vy = (window * (x - mx) ** 2).sum(), (window * (y - my) ** 2).sum()
            covariance = (window * (x - mx) * (y - my)).sum()
            c1, c2 = 0.01**2, 0.03**2
            values.append(
                (2 * mx * my + c1)
                * (2 * covariance + c2)
                / ((mx**2 + my**2 + c1) * (vx + vy + c2))
            )
    return float(np.mean(values))


def test_ssim_is_that_of_the_literature() -> None:
    first = video(0, frames=1, height=20, width=18).astype(np.float64)
    second = np.clip(first + 0.8 * (video(1, frames=1, height=20, width=18) - 0.5), 0, 1)
    expected = np.mean([ssim_by_definition(first[0, ..., c], second[0, ..., c]) for c in range(3)])
    assert ssim(first, second) == pytest.approx(expected, abs=1e-9)
    assert ssim(first, first) == pytest.approx(1)
    for seed in range(12):  # nearly flat pictures: rounding in float32 passed 1 for some
        chance = np.random.default_rng(seed)
        flat = 0.5 + 0.01 * chance.random((1, 24, 24, 3), dtype=np.float32)
        other = (flat + 1e-5 * chance.standard_normal(flat.shape)).astype(np.float32)
        assert 0.999 < ssim(flat, other) <= 1


def test_lpips_is_there_with_weights_and_says_why_not_without() -> None:
    first, second = video(0), video(1)
    without = compare_videos(first, second)
    assert without.lpips is None
    assert without.why_no_lpips is not None and "svoo weights lpips" in without.why_no_lpips
    tensors = lpips_module.read_checkpoint(pickle.dumps(random_checkpoint()))
    lpips_module.weights_path().parent.mkdir(parents=True)
    save_file(tensors, lpips_module.weights_path())
    found = compare_videos(first, second)
    assert found.lpips is not None and found.lpips > 0 and found.why_no_lpips is None
    assert compare_videos(first, first).lpips == 0
    small = compare_videos(video(height=20), video(height=20))
    assert small.why_no_lpips is not None and "at least 35" in small.why_no_lpips


def test_damaged_weights_of_lpips_are_a_reason_not_a_crash() -> None:
    path = lpips_module.weights_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a safetensors file")
    why = compare_videos(video(0), video(1)).why_no_lpips
    assert why is not None and str(path) in why and "svoo weights lpips" in why
    save_file({"other": torch.zeros(1)}, path)
    why = compare_videos(video(0), video(1)).why_no_lpips
    assert why is not None and "holds other weights" in why


def test_bytes_and_floats_are_the_same_video() -> None:
    eight_bits = (video() * 255).astype(np.uint8)
    assert compare_videos(eight_bits, eight_bits.astype(np.float32) / 255).psnr > 100


def test_what_cannot_be_compared() -> None:
    with pytest.raises(ShapeError, match=r"\(3, 36, 48, 3\) and \(2, 36, 48, 3\)"):
        compare_videos(video(), video(frames=2))
    with pytest.raises(ShapeError, match="first video must be"):
        compare_videos(video()[0], video())
    with pytest.raises(ShapeError, match=r"uint8 or in \[0, 1\]"):
        compare_videos(video(), 255 * video())
    with pytest.raises(ShapeError, match=r"uint8 or in \[0, 1\]"):
        compare_videos(video(), np.full_like(video(), np.nan))
    with pytest.raises(ShapeError, match="at least 11 rows"):
        compare_videos(video(height=8), video(height=8))
