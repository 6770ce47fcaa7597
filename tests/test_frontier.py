"""How well a run's own error ranks its quality, as `benchmarks/frontier.py` prints it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import frontier
import pytest
from frontier import correlations_within, free_attention, print_prediction, rank_correlation
from harness import BEFORE

from svoo import SVOOConfig


def row(prompt: str, setting: str, error: float | None, psnr: float) -> dict[str, Any]:
    return {"prompt": prompt, "setting": setting, "error": error, "psnr": psnr}


def test_error_against_psnr(capsys: pytest.CaptureFixture[str]) -> None:
    # Each prompt alone is in order; together they are not: the second is harder by itself.
    rows = [row("a", name, 0.01 * i, 40 - i) for i, name in enumerate("xyz", start=1)]
    rows += [row("b", name, 0.002 * i, 30 - i) for i, name in enumerate("xyz", start=1)]
    assert correlations_within(rows, "prompt") == pytest.approx([-1, -1])
    assert correlations_within(rows, "setting") == []  # two runs have no order
    assert rank_correlation(rows) == pytest.approx(1 - 6 * 16 / 210)  # 1 - 6 sum d^2 / n (n^2 - 1)
    paper = row("a", "paper", None, 28.0)  # measures no error
    failed = {"prompt": "a", "setting": "w", "failed": "out of memory"}
    print_prediction([*rows, paper, failed])
    printed = " ".join(capsys.readouterr().out.split())
    assert "over 6 runs: Spearman 0.54" in printed
    assert "over the settings of one prompt -1.00 (median)" in printed


def test_equal_errors_rank_nothing() -> None:
    rows = [row("a", name, 0.01, psnr) for name, psnr in (("x", 30.0), ("y", 31.0), ("z", 32.0))]
    assert rank_correlation(rows) == 0


def test_what_is_no_picture_has_failed_and_rows_know_their_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_pipe: Any, name: str, _config: Any, **_: Any) -> Any:
        psnr = math.nan if name == "broken" else 30.0
        return SimpleNamespace(name=name, psnr=psnr)

    monkeypatch.setattr(frontier, "run_trial", run)
    monkeypatch.setattr(frontier, "warm_up", lambda *_: None)
    monkeypatch.setattr(frontier, "figures_of", lambda trial, _: {"psnr": trial.psnr})
    sizes: dict[str, int | str] = {"frames": 9, "steps": 1, "height": 32, "width": 48}
    tried = {"good": SVOOConfig(), "broken": SVOOConfig.fast()}
    frontier.run_settings(tried, ["a prompt"], tmp_path, "x", sizes)
    good, broken = json.loads((tmp_path / "x.json").read_text())["rows"]
    assert good["psnr"] == 30.0 and good["commit"] == BEFORE["commit"]
    assert broken["failed"] == "ArithmeticError: the video's PSNR is nan" and "psnr" not in broken


def test_free_attention_leaves_what_is_no_attention() -> None:
    """A sparse loop of 4 s with 1 s of attention, 9 times as fast as dense attention was."""
    seconds = {"seconds_clustering": 0.1, "seconds_selection": 0.2, "seconds_attention": 0.7}
    found = {"sparse_calls": 10, "dense_calls": 0, "attention_speed_up": 9.0, **seconds}
    assert free_attention([{**found, "dense_denoising": 12.0, "config": {}}]) == pytest.approx(4)
