"""How well a run's own error ranks its quality, as `benchmarks/frontier.py` prints it."""

from __future__ import annotations

from typing import Any

import pytest
from frontier import correlations_within, print_prediction, rank_correlation


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
