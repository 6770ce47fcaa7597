"""The tables that `benchmarks/frontier_pages.py` puts into README and docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from frontier_pages import SECTIONS, Run, few_steps, read_runs, side_by_side, where_time_goes

MACHINE = {"threads": 2, "processor": "x", "instructions": "AVX2", "torch": "2", "commit": "abc"}


def row(setting: str, psnr: float, **more: Any) -> dict[str, Any]:
    """A sparse loop of 4 s, 1 s of it attention, where dense takes 12 s, 9 s of them attention."""
    figures = {"density": 0.1, "ssim": 0.9, "psnr": psnr, "error": 0.05, "dense_calls": 0}
    figures["sparse_calls"] = 280
    seconds = {"seconds_clustering": 0.1, "seconds_selection": 0.2, "seconds_attention": 0.7}
    seconds["seconds_dense"] = 0.0
    speed = {"speed_up": 3.0, "attention_speed_up": 9.0, "denoising": 4.0, "dense_denoising": 12.0}
    sizes = {"frames": 49, "steps": 20, "height": 144, "width": 256, "weights": "w"}
    facts = {"setting": setting, "prompt": f"{psnr}", "config": {"tolerance": 1}, "processor": "x"}
    return {**facts, **sizes, **figures, **seconds, **speed, **more}


def write(folder: Path, name: str, *rows: dict[str, Any]) -> Run:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": MACHINE, "rows": rows}))
    return Run(path)


def test_medians_the_least_and_what_free_attention_would_give(tmp_path: Path) -> None:
    run = write(tmp_path, "far_field", *(row("default", psnr) for psnr in (30.0, 35.0, 32.0)))
    text = side_by_side(run)
    assert "20 steps, 7,488 tokens; medians of 3 held-out prompts" in text
    assert "| 3.00x | 9.0x | 0.100 | 32.0 dB (30.0) | 0.900 |" in text
    assert "If attention were free, the loop would be 4.0x." in text
    assert (
        "| default | 4.0 s | 3.0 s | 0.10 s | 0.20 s | 0.70 s | 0.00 s | 5.0% |"
        in where_time_goes(run)
    )
    assert few_steps(run, run).count("32.0 dB (30.0)") == 2


def test_what_failed_or_had_other_settings_does_not_count(tmp_path: Path) -> None:
    old = row("default", 20.0, config={"tolerance": 2})
    failed = {"setting": "fast", "prompt": "p", "failed": "out of memory"}
    run = write(tmp_path, "far_field", old, failed, row("default", 30.0))
    assert run.settings == ["default"] and run.psnr("default") == "30.0 dB (30.0)"


def test_runs_of_other_weights_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "far_field", row("default", 30.0))
    write(tmp_path, "steps8", row("default", 30.0, weights="old"))
    assert list(read_runs(tmp_path)) == ["far_field"]
    assert "steps8 is of other weights" in capsys.readouterr().out
    (tmp_path / "far_field.json").unlink()
    with pytest.raises(SystemExit, match=r"no far_field\.json"):
        read_runs(tmp_path)


def test_the_pages_have_their_sections() -> None:
    for page, section, _, _ in SECTIONS:
        text = Path(page).read_text()
        assert text.count(f"<!-- {section} -->") == text.count(f"<!-- end of {section} -->") == 1
