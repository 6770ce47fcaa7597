import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from PIL import Image

from svoo import SVOOConfig
from svoo.app import demo
from svoo.app.demo import MODES, run_modes, write_results
from svoo.catalogue import find_model
from svoo.metrics.compare import Likeness
from svoo.metrics.video import read_video
from svoo.plugin.trial import Trial
from svoo.session.stats import LayerCounter, RunStats

SIZES = {"num_inference_steps": 5, "num_frames": 17, "height": 128, "width": 128}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "load", lambda: tiny.build("wan2.1-t2v"))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        seen: list[tuple[str, int, int]] = []
        trials = run_modes("a <red> fox", on_step=lambda *progress: seen.append(progress), **SIZES)
        assert [trial.name for trial in trials] == list(MODES)
        assert seen[0] == ("dense", 1, 15) and seen[-1] == ("default", 15, 15)
        out = tmp_path_factory.mktemp("demo")
        return write_results(trials, "a <red> fox", out, seed=0, **SIZES)


def test_everything_is_written(page: Path) -> None:
    names = {path.name for path in page.parent.iterdir()}
    videos = {f"{mode}.mp4" for mode in MODES} | {"side-by-side.mp4"}
    assert names == videos | {"density.png", "strip.png", "results.json", "index.html"}
    strip = np.asarray(Image.open(page.parent / "strip.png"))
    assert strip.shape == (3 * 144, 5 * 128, 3)
    first = read_video(page.parent / "dense.mp4")[0].astype(int)
    assert abs(strip[16:144, :128] - first).mean() < 20  # a codec lies between them
    assert read_video(page.parent / "side-by-side.mp4").shape == (17, 144, 384, 3)
    results = json.loads((page.parent / "results.json").read_text())
    assert [row["mode"] for row in results["modes"]] == list(MODES)
    dense, paper, default = results["modes"]
    assert dense["speed_up"] == 1 and dense["psnr"] is None
    for row in (paper, default):
        assert row["speed_up"] == pytest.approx(
            dense["denoising_seconds"] / row["denoising_seconds"]
        )
        # Default mode stays dense on random weights, so that its video equals the dense one.
        assert row is default or row["psnr"] > 5
        assert 0 < row["density"] <= 1 and 0 < row["recall"] <= 1
        assert row["lpips"] is None and "svoo weights lpips" in row["why_no_lpips"]
        by_layer = row["density_by_layer_and_head"]
        assert all(heads is None or len(heads) == tiny.HEADS for heads in by_layer)
    assert len(paper["density_by_layer_and_head"][-1]) == tiny.HEADS
    assert results["machine"]["torch"]
    assert results["seed"] == 0 and results["num_frames"] == 17
    assert dense["config"]["method"] == "dense" and paper["config"]["compensate"] is False


def test_equal_videos_and_a_recall_that_is_not_known_are_valid_json(tmp_path: Path) -> None:
    frames = np.zeros((1, 16, 16, 3), dtype=np.float32)
    counter = LayerCounter()
    counter.sparse_calls = 1
    counter.density.add(torch.ones(1))
    stats = RunStats("svoo", "auto", 1, 20, "", [counter.read(0, 0)], 0)
    alike = Likeness(math.inf, 1.0, None, "no weights")
    trial = Trial("paper", SVOOConfig(), frames, 1.0, 2.0, 0.1, 1.0, math.nan, stats, alike)
    page = write_results([trial], "a fox", tmp_path)
    row = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert (row["modes"][0]["psnr"], row["modes"][0]["recall"]) == (None, None)
    assert "equal" in page.read_text()


def test_the_embedded_model_itself_is_shown(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "num_inference_steps": 2,
        "num_frames": 5,
        "height": 48,
        "width": 80,
    }
    with pytest.warns(UserWarning, match="the profile was measured with 7488 video tokens"):
        trials = run_modes("a red circle moves left over a checkered floor", **sizes)
    page = write_results(trials, "a red circle", tmp_path, **sizes)
    rows = json.loads((tmp_path / "results.json").read_text())["modes"]
    assert page.exists() and len(rows[2]["density_by_layer_and_head"]) == find_model("mini").layers
    psnr = rows[2]["psnr"]  # None: equal, because so few tokens stay dense
    assert psnr is None or psnr > 15


def test_the_page_needs_nothing_else(page: Path) -> None:
    text = page.read_text()
    assert "a &lt;red&gt; fox" in text and "a <red> fox" not in text
    assert text.count("<video") == 3
    assert not re.search(r'(src|href)="(?!data:)', text)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium here")
def test_a_browser_plays_it_on_a_phone(page: Path, tmp_path: Path) -> None:
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]
    command += ["--no-first-run", "--disable-background-networking", "--disable-sync"]
    command += ["--disable-component-update"]
    command += [f"--user-data-dir={tmp_path}", "--window-size=400,800"]
    command += ["--virtual-time-budget=5000", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert 'data-playable="3"' in done.stdout, done.stderr[-2000:]
    assert 'data-fits="true"' in done.stdout
