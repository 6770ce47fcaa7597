"""What `methods.py` says of its rows: the table, the figure that counts, who is ahead of us where,
the plot, and all of it as a section of a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frontier import free_attention, summarise
from pages import as_table, describe_machine, made_on
from rich.console import Console
from rich.table import Table

from svoo import MethodConfig
from svoo.methods.warm_up import fraction_of

FASTER = "twice fast"  # with twice the tolerance of fast
PRESETS = ("svoo", "fast", "careful")
OURS = (*PRESETS, FASTER)
PAPER = "paper"
GOOD = 30.0  # dB
AIM = 1.5  # times the best other's speed-up
NEAR = 0.1  # of a density asked for
DENSE = 0.99  # a share of dense attention, kept or computed, that is dense in all but name
FIGURES = ("density", "psnr", "ssim", "attention_speed_up", "speed_up")
COLUMNS = ("density", "work", "recall", "error", "PSNR", "least", "SSIM", "calls", "loop")

Summary = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Setting:
    """A method as it is run: its name, the warm-up of all, the density it was tuned to, and what
    was put for the blocks that it drops of itself."""

    method: str
    config: MethodConfig
    warm_up: float
    density: float | None = None
    terms: str = ""

    @property
    def label(self) -> str:
        """The name of the row."""
        tuned = "" if self.density is None else f", density {self.density:g}"
        with_terms = f" with {self.terms} terms" if self.terms else ""
        return f"{self.method}{with_terms}, warm-up {self.warm_up:g}{tuned}"


@dataclass(frozen=True)
class Results:
    """All settings of a run in their order, its rows (one for a setting and a prompt), and recall,
    error and work by label."""

    settings: Sequence[Setting]
    rows: Sequence[Mapping[str, Any]]
    fidelity: Mapping[str, Mapping[str, Any]]

    @property
    def summary(self) -> dict[str, dict[str, float]]:
        """Medians over prompts by label, and the least PSNR of any prompt. Density and
        speed-up of calls are those of all calls after the warm-up, where a call that the method
        leaves dense counts as 1."""
        warm_ups = {setting.label: setting.warm_up for setting in self.settings}
        rows = [
            row | figures_after(row, warm_ups[row["setting"]])
            for row in map(dict, self.rows)
            if "failed" not in row
        ]
        found = summarise(rows, FIGURES)
        for label, figures in found.items():
            figures["least"] = min(row["psnr"] for row in self._rows_of(label))
        return found

    @property
    def dense(self) -> list[str]:
        """The labels of rows that are dense in all but name: by the pairs they keep, or by all
        that they compute."""
        return [
            label
            for label, found in self.summary.items()
            if max(found["density"], self.fidelity.get(label, {}).get("work") or 0.0) >= DENSE
        ]

    def _rows_of(self, label: str) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if row["setting"] == label and "failed" not in row]

    def failure(self, label: str) -> str | None:
        """Return on how many prompts a setting failed, and how at first; None if it never did."""
        own = [row for row in self.rows if row["setting"] == label]
        failed = [row["failed"] for row in own if "failed" in row]
        return f"failed on {len(failed)} of {len(own)} prompts: {failed[0]}" if failed else None


def figures_after(row: Mapping[str, Any], warm_up: float) -> dict[str, float]:
    """Return density and speed-up of a run's calls after the warm-up, the dense ones among them
    too."""
    every = row["sparse_calls"] + row["dense_calls"]
    later = every * (row["steps"] - fraction_of(row["steps"], warm_up)) / row["steps"]
    dense = 1 - row["sparse_calls"] / later if later > 0 else 1.0
    return {
        "density": row["density"] * (1 - dense) + dense,
        "attention_speed_up": 1 / ((1 - dense) / row["attention_speed_up"] + dense),
    }


def cells(results: Results) -> Iterator[tuple[str, ...]]:
    """Yield the table's rows: the setting, then what COLUMNS names; a dash where nothing ran."""
    summary = results.summary
    for setting in results.settings:
        label, failure = setting.label, results.failure(setting.label)
        name = label if failure is None else f"{label} ({failure})"
        found, seen = summary.get(label), results.fidelity.get(label, {})
        if found is None:
            yield name, *("-" for _ in COLUMNS)
            continue
        shares = found["density"], *(seen.get(part) for part in ("work", "recall", "error"))
        yield (
            name,
            *("-" if share is None else f"{share:.3f}" for share in shares),
            f"{found['psnr']:.1f}",
            f"{found['least']:.1f}",
            f"{found['ssim']:.4f}",
            f"{found['attention_speed_up']:.2f}x",
            f"{found['speed_up']:.2f}x",
        )


def print_table(results: Results) -> None:
    """Print a row for every setting: shares of dense, PSNR in dB (median and worst prompt),
    speed-ups of attention calls (planning included) and of the denoising loop."""
    table = Table("setting")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for row in cells(results):
        table.add_row(*row)
    Console(width=150).print(table)


def say_what_counts(results: Results, figure: str = "psnr") -> str:
    """Return the speed-ups of our presets, and of all values of our knob, over the best other
    method's: of the settings that reach 30 dB on every prompt ("least") or in the median ("psnr"),
    leave something out and never failed. Beside it our aim, and the bound. Settings that were
    tuned to a density are compared at that density alone."""
    densities = dict.fromkeys(setting.density for setting in results.settings)
    return " ".join(_say_what_counts_at(results, figure, density) for density in densities)


def _say_what_counts_at(results: Results, figure: str, density: float | None) -> str:
    summary = results.summary
    sparse = [
        setting
        for setting in results.settings
        if setting.density == density
        and setting.label in summary
        and setting.label not in results.dense
        and results.failure(setting.label) is None
    ]
    good = [setting for setting in sparse if summary[setting.label][figure] >= GOOD]
    good.sort(key=lambda setting: -summary[setting.label]["speed_up"])
    where = "in the median" if figure == "psnr" else "on every prompt"
    where += "" if density is None else f", density {density:g}"
    other = next((setting for setting in good if setting.method not in (*OURS, PAPER)), None)
    begin = f"At {GOOD:g} dB and more {where}"
    if other is None:
        own = next((setting for setting in good if setting.method in OURS), None)
        reached = "" if own is None else f"; ours has {summary[own.label]['speed_up']:.2f}x"
        return f"{begin}: no ratio, because no other method reaches it{reached}."
    best = summary[other.label]["speed_up"]
    said = []
    for names, who in ((PRESETS, "of our presets"), (OURS, "of all values of our knob")):
        own = next((setting for setting in good if setting.method in names), None)
        if own is None:
            said.append(f"none {who} reaches it")
        else:
            fast = summary[own.label]["speed_up"]
            said.append(f"{who} {own.label} has {fast:.2f}x, {fast / best:.2f} times as much")
    aim = f"our aim was {AIM:g} times ({AIM * best:.2f}x)"
    free = [dict(row) for row in results.rows if row["setting"] == f"svoo, warm-up {0:g}"]
    if free and "seconds_attention" in free[0]:
        aim += f"; with free attention the loop would be {free_attention(free):.1f}x"
    return f"{begin} the best other is {other.label} with {best:.2f}x; {'; '.join(said)}; {aim}."


def say_who_is_ahead(results: Results) -> list[str]:
    """Return, for each warm-up and density, which settings no setting of ours there matches: none
    of ours has as much PSNR and keeps as little (or is as fast)."""
    summary = results.summary
    kinds = dict.fromkeys((setting.warm_up, setting.density) for setting in results.settings)
    lines = []
    for warm_up, density in kinds:
        here = [
            setting
            for setting in results.settings
            if (setting.warm_up, setting.density) == (warm_up, density)
            and setting.label in summary
            and setting.label not in results.dense
        ]
        ours = [summary[setting.label] for setting in here if setting.method in OURS]
        kind = f"warm-up {warm_up:g}" + ("" if density is None else f", density {density:g}")
        if not ours:
            lines.append(f"{kind}: none of ours ran sparse.")
            continue
        others = [setting for setting in here if setting.method not in OURS]
        by_density = [
            setting
            for setting in others
            if not any(_matches(own, summary[setting.label], "density", -1) for own in ours)
        ]
        by_speed = [
            setting
            for setting in others
            if not any(_matches(own, summary[setting.label], "speed_up", 1) for own in ours)
        ]
        if density is not None:  # equal by the knob: only the picture is compared
            top = max(own["psnr"] for own in ours)
            by_density = [s for s in others if summary[s.label]["psnr"] > top]
        where = "density" if density is None else "that density"
        lines.append(
            f"{kind}: not matched by ours in PSNR and {where}: {_names(by_density, summary)}; in "
            f"PSNR and speed-up of the loop: {_names(by_speed, summary)}."
        )
        if density is not None:
            least = max(own["least"] for own in ours)
            lines[-1] += f" Closer than ours ({least:.1f} dB) on the worst prompt of each: "
            lines[-1] += f"{_names_with_least(others, summary, least)}."
            # The knob was turned on recorded calls, not on these prompts.
            off = [s for s in here if not _is_near(summary[s.label]["density"], density)]
            lines[-1] += f" Off by more than a tenth in these runs: {_names(off, summary)}."
    return lines


def _is_near(found: float, density: float) -> bool:
    return abs(found - density) <= NEAR * density


def _matches(own: Mapping[str, float], other: Mapping[str, float], figure: str, sign: int) -> bool:
    return own["psnr"] >= other["psnr"] and sign * own[figure] >= sign * other[figure]


def _names(settings: Sequence[Setting], summary: Summary) -> str:
    return (
        ", ".join(
            f"{setting.method} ({summary[setting.label]['psnr']:.1f} dB at "
            f"{summary[setting.label]['density']:.3f}, {summary[setting.label]['speed_up']:.2f}x)"
            for setting in settings
        )
        or "none"
    )


def _names_with_least(settings: Sequence[Setting], summary: Summary, above: float) -> str:
    found = {setting.method: summary[setting.label]["least"] for setting in settings}
    names = [f"{name} ({least:.1f} dB)" for name, least in found.items() if least > above]
    return ", ".join(names) or "none"


def draw(results: Results, path: Path) -> None:
    """Draw PSNR against density and against speed-up; ours and paper mode stand out, and settings
    without warm-up are hollow. What is dense in all but name is named, not drawn: its PSNR would
    press all others together."""
    from matplotlib.figure import Figure

    summary = results.summary
    dense = results.dense
    figure = Figure(figsize=(11, 13), layout="constrained")
    labels = {"density": "density after the warm-up", "speed_up": "speed-up of the denoising loop"}
    for axes, (name, label) in zip(figure.subplots(2), labels.items(), strict=True):
        for setting in results.settings:
            if setting.label not in summary or setting.label in dense:
                continue
            found = summary[setting.label]
            ours = setting.method in OURS
            colour = "tab:red" if ours else "black" if setting.method == PAPER else "tab:blue"
            point = found[name], found["psnr"]
            face = colour if setting.warm_up else "none"
            shape = "*" if ours else "D" if setting.method == PAPER else "o"
            size = 80 if ours else 26
            axes.scatter(*point, s=size, marker=shape, edgecolors=colour, facecolors=face)
            text = (
                "svoo, " + setting.method if ours and setting.method != "svoo" else setting.method
            ) + (f" + {setting.terms}" if setting.terms else "")
            axes.annotate(
                text, point, (5, 2), textcoords="offset points", fontsize=7, color=colour
            )
        axes.axhline(GOOD, color="grey", linewidth=0.8, linestyle=":")
        axes.set(xlabel=label, ylabel="PSNR against dense, dB")
        axes.grid(visible=True, alpha=0.3)
    left_out = f"; dense in all but name, not drawn: {'; '.join(dense)}" if dense else ""
    figure.suptitle(f"filled: with warm-up, hollow: no dense step{left_out}", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def as_markdown(results: Results, about: str, picture: str) -> str:
    """Return the section of a page: what was run, the table, what counts, who is ahead, the
    plot."""
    table = as_table(("setting", *COLUMNS), *cells(results))
    counts = [f"**{say_what_counts(results)}** {say_what_counts(results, 'least')}"]
    ahead = [f"- {line}" for line in say_who_is_ahead(results)]
    plot = f"![PSNR against density and against speed-up]({picture})"
    return "\n\n".join((about, table, *counts, "\n".join(ahead), plot))


def describe(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    sizes: Mapping[str, int | str],
    left_out: Sequence[str],
    *,
    fidelity: bool = True,
) -> str:
    """Return what the rows of a run were made on, from its JSON: machine, commits, sizes."""
    machine = made_on(json.loads(path.read_text())["machine"], rows)
    prompts = len({row["prompt"] for row in rows})
    size = f"{sizes['frames']} frames of {sizes['height']} x {sizes['width']}"
    about = (
        f"{size}, {sizes['steps']} steps, medians of {prompts} held-out prompts, the worst "
        f'prompt\'s PSNR under "least"; {describe_machine(machine)}, load '
        f"{machine['load_before']:g} at the start."
    )
    if fidelity:
        about += (
            " Recall, error and work are of the first prompt, one branch, layers 1, 3 and 5; work "
            "besides kept pairs is counted, not timed."
        )
    return f"{about} Left out: {'; '.join(left_out)}." if left_out else about
