"""What `benchmarks/methods.py` says of its rows; the runs themselves take hours."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from methods_table import (
    Results,
    Setting,
    as_markdown,
    cells,
    draw,
    figures_after,
    say_what_counts,
    say_who_is_ahead,
)
from pages import fill_section

from svoo.methods.dense import DenseConfig


def results(*figures: tuple[str, list[tuple[float, float, float]]]) -> Results:
    """Rows of methods without warm-up: density, PSNR and speed-up of each prompt."""
    settings = [Setting(name, DenseConfig(), 0.0) for name, _ in figures]
    rows: list[dict[str, Any]] = [
        {"setting": f"{name}, warm-up 0", "density": density, "psnr": psnr, "speed_up": speed_up}
        | {"ssim": 0.9, "attention_speed_up": 2 * speed_up}
        | {"steps": 20, "sparse_calls": 120, "dense_calls": 0}
        for name, prompts in figures
        for density, psnr, speed_up in prompts
    ]
    return Results(settings, rows, {"svoo, warm-up 0": {"recall": 0.8, "error": 0.1, "work": 0.2}})


OURS = ("svoo", [(0.05, 38.0, 4.0), (0.05, 29.0, 4.2), (0.05, 36.0, 4.1)])


def test_the_table_has_medians_and_the_worst_prompt_and_says_what_failed() -> None:
    found = results(OURS, ("sol", [(0.2, 31.0, 2.0)]), ("pisa", []))
    failed = {"setting": "pisa, warm-up 0", "failed": "ValueError: no"}
    late = {"setting": "sol, warm-up 0", "failed": "MemoryError: full"}
    rows = list(cells(Results(found.settings, [*found.rows, failed, late], found.fidelity)))
    assert rows[0] == (
        "svoo, warm-up 0",
        *("0.050", "0.200", "0.800", "0.100", "36.0", "29.0", "0.9000", "8.20x", "4.10x"),
    )
    assert rows[1][:3] == (
        "sol, warm-up 0 (failed on 1 of 2 prompts: MemoryError: full)",
        *("0.200", "-"),
    )
    assert rows[2][0].endswith("(failed on 1 of 1 prompts: ValueError: no)")
    assert set(rows[2][1:]) == {"-"}


def test_calls_that_are_dense_after_the_warm_up_count() -> None:
    calls = {"sparse_calls": 96, "dense_calls": 24}
    row = {"density": 0.2, "attention_speed_up": 4.0, "steps": 20, **calls}
    assert figures_after(row, 0.2) == pytest.approx({"density": 0.2, "attention_speed_up": 4.0})
    assert figures_after(row, 0.0) == pytest.approx(
        {"density": 0.8 * 0.2 + 0.2, "attention_speed_up": 1 / (0.8 / 4 + 0.2)}
    )
    row |= {"density": 1.0, "sparse_calls": 0, "dense_calls": 120}
    for warm_up in (0.2, 1.0):
        assert figures_after(row, warm_up) == {"density": 1.0, "attention_speed_up": 1.0}


def test_terms_are_named_in_the_row() -> None:
    assert Setting("radial", DenseConfig(), 0.2, terms="mean").label == (
        "radial with mean terms, warm-up 0.2"
    )


def test_what_counts_is_the_ratio_to_the_best_other_of_30_db() -> None:
    found = results(
        OURS,
        ("sol", [(0.2, 31.0, 2.0)]),
        ("radial", [(1.0, 99.0, 9.0)]),  # dense in all but name
        ("svg2", [(0.1, 29.9, 3.0)]),
        ("paper", [(0.3, 33.0, 2.5)]),  # ours too, but no other method
    )
    said = say_what_counts(found)
    assert "the best other is sol, warm-up 0 with 2.00x" in said
    assert "of our presets svoo, warm-up 0 has 4.10x, 2.05 times" in said
    assert "our aim was 1.5 times (3.00x)" in said
    assert "none of our presets reaches it" in say_what_counts(found, "least")
    every_term = {"sol, warm-up 0": {"recall": 0.5, "error": 0.0, "work": 1.004}}
    assert "no other method" in say_what_counts(replace(found, fidelity=every_term))
    failed = {"setting": "sol, warm-up 0", "failed": "ValueError: no"}
    only = Results(found.settings, [*found.rows, failed], {})
    assert "no other method reaches it" in say_what_counts(only)


def test_what_counts_tells_presets_from_other_values_of_the_knob() -> None:
    said = say_what_counts(
        results(OURS, ("twice fast", [(0.02, 31.0, 5.0)]), ("sol", [(0.2, 31.0, 2.0)]))
    )
    assert "of our presets svoo, warm-up 0 has 4.10x, 2.05 times" in said
    assert "of all values of our knob twice fast, warm-up 0 has 5.00x, 2.50 times" in said


def test_who_is_not_matched_is_named() -> None:
    found = results(
        OURS,
        ("sol", [(0.2, 37.0, 2.0)]),  # a better picture, from four times the pairs
        ("svg2", [(0.01, 20.0, 5.0)]),  # a worse one, from fewer, faster
        ("svg1", [(0.2, 30.0, 2.0)]),
    )
    (line,) = say_who_is_ahead(found)
    dense = {"sol, warm-up 0": {"recall": 0.5, "error": 0.0, "work": 1.004}}
    assert "sol" not in say_who_is_ahead(replace(found, fidelity=dense))[0]
    by_density, by_speed = line.split("; ")
    for said in (by_density, by_speed):
        assert "sol (37.0 dB" in said and "svg2 (20.0 dB" in said and "svg1" not in said


def test_at_equal_density_who_is_off_is_named() -> None:
    found = results(OURS, ("sol", [(0.15, 40.0, 2.0)]), ("svg1", [(0.2, 30.0, 2.0)]))
    settings = [replace(setting, density=0.14) for setting in found.settings]
    rows = [{**row, "setting": f"{row['setting']}, density 0.14"} for row in found.rows]
    (line,) = say_who_is_ahead(Results(settings, rows, {}))
    assert "that density: sol (40.0 dB" in line
    assert "Closer than ours (29.0 dB) on the worst prompt of each: sol (40.0 dB), svg1" in line
    off = line.split("in these runs: ")[1]
    assert "svoo (36.0 dB at 0.050" in off and "svg1" in off and "sol" not in off


def test_a_density_is_compared_with_itself_alone() -> None:
    found = results(OURS, ("sol", [(0.3, 31.0, 2.0)]))
    densities = {"svoo": 0.15, "sol": 0.3}
    settings = [replace(setting, density=densities[setting.method]) for setting in found.settings]
    labels = {old.label: new.label for old, new in zip(found.settings, settings, strict=True)}
    rows = [{**row, "setting": labels[row["setting"]]} for row in found.rows]
    said = say_what_counts(Results(settings, rows, {}))
    assert "density 0.15: no ratio, because no other method reaches it; ours has 4.10x" in said
    assert "density 0.3 the best other is sol" in said and "none of our presets" in said
    assert "times as much" not in said


def test_what_is_dense_is_not_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(Axes, "annotate", lambda _axes, text, *_rest, **_more: drawn.append(text))
    found = results(OURS, ("sta", [(1.0, 134.0, 1.0)]), ("paper", [(0.3, 33.0, 2.0)]))
    draw(found, tmp_path / "x.png")
    assert drawn == ["svoo", "paper"] * 2


def test_a_section_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x -->\nold\n<!-- end of x -->\nb\n")
    picture = tmp_path / "x.png"
    draw(results(OURS), picture)
    assert picture.stat().st_size > 1000
    for _ in range(2):
        fill_section(page, "x", as_markdown(results(OURS), "about", "x.png"))
    text = page.read_text()
    assert text.startswith("a\n<!-- x -->\nabout\n\n| setting | density |")
    assert text.endswith("(x.png)\n<!-- end of x -->\nb\n") and "old" not in text
    assert text.count("| svoo, warm-up 0 | 0.050 |") == 1
    with pytest.raises(SystemExit, match="has no section <!-- y -->"):
        fill_section(page, "y", "")
