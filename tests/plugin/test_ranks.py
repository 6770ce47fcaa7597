"""`torchrun -m svoo generate`: several processes make the video of one; the first writes it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from svoo.catalogue import find_model
from svoo.errors import ConfigError
from svoo.plugin.ranks import Ranks, find_ranks
from svoo.plugin.request import Request
from svoo.plugin.run import generate

PROMPT = "a red circle moves left"
SETTINGS = {"steps": 3, "frames": 9, "height": 96, "width": 160}


def torchrun(ranks: int, *command: str) -> subprocess.CompletedProcess[str]:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "-m", "svoo"]
    return subprocess.run(
        [sys.executable, *launch, *command],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip


def test_two_processes_make_the_video_of_one_and_the_first_writes(tmp_path: Path) -> None:
    options = [text for name, value in SETTINGS.items() for text in (f"--{name}", str(value))]
    two, one = tmp_path / "two" / "video.npy", tmp_path / "video.npy"
    prompt = ["--prompt", PROMPT, "--method", "svoo", "--json"]
    done = torchrun(2, "generate", *prompt, "--device", "cpu", "--out", str(two), *options)
    assert done.returncode == 0, done.stderr
    generate(Request(prompt=PROMPT, method="svoo", device="cpu", out=one, **SETTINGS))  # type: ignore[arg-type]
    assert np.abs(np.load(two).astype(int) - np.load(one).astype(int)).max() <= 1
    assert {file.name for file in two.parent.iterdir()} == {"video.npy", "video.json"}
    said, alone = json.loads(done.stdout), json.loads(one.with_suffix(".json").read_text())
    assert said["density"] == pytest.approx(alone["density"])
    for layer, same in zip(said["stats"]["layers"], alone["stats"]["layers"], strict=True):
        assert layer["density_by_head"] == pytest.approx(same["density_by_head"])


def test_processes_that_cannot_share_the_heads_are_refused_before_any_work(tmp_path: Path) -> None:
    out = tmp_path / "video.npy"
    done = torchrun(3, "generate", "--prompt", PROMPT, "--out", str(out))
    assert done.returncode != 0 and "exitcode  : 2" in done.stderr
    heads = find_model("mini").heads
    expected = f"error: 3 ranks cannot share {heads} attention heads evenly: use 1"
    assert done.stderr.count(expected) == 1
    assert not list(tmp_path.iterdir())


def test_finds_what_torchrun_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert find_ranks() == Ranks() and Ranks().first
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert find_ranks() == Ranks(5, 8, 1) and not find_ranks().first


def test_every_process_takes_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Ranks().choose_device("cuda:1") == "cuda:1" and Ranks().choose_device(None) is None
    ranks = Ranks(3, 4, 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ranks.choose_device(None) == "cpu" == ranks.choose_device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert ranks.choose_device(None) == "cuda:1" == ranks.choose_device("cuda")
    with pytest.raises(ConfigError, match="leave it out"):
        ranks.choose_device("cuda:0")
    with pytest.raises(ConfigError, match="which has 2 GPUs"):
        Ranks(3, 4, 3).choose_device(None)


def test_one_process_meets_nobody() -> None:
    with Ranks().joined(None):
        assert not torch.distributed.is_initialized()
