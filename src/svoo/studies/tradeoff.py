"""The paper's Fig. 7: quality against speed-up over the sparsity setting of every method that has
one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from svoo.methods import available_methods, find_method
from svoo.studies.base import LAST, Claim, Job, Plot, Section, Verdict, as_png
from svoo.studies.comparisons import (
    PSNR,
    SPEED_UP,
    Entry,
    by_prompt,
    make_table,
    read_entries,
    run_jobs,
    verdict_of,
    where,
)
from svoo.studies.lab import Lab
from svoo.studies.results import Results
from svoo.studies.runs import Setting
from svoo.studies.scatter import points
from svoo.studies.settings import OURS, PAPER, changed, our_mode, paper_mode
from svoo.studies.statistics import paired

# Values of a method's knob, from near dense to far.
SWEEPS: dict[str, tuple[float, ...]] = {
    OURS: (0.0064, 0.0128, 0.018, 0.0362),  # careful, balanced, fast, and further
    PAPER: (0.97, 0.9, 0.8, 0.6),
    "spargeattn": (0.6, 0.4, 0.25, 0.15),
    "svg1": (0.6, 0.4, 0.25, 0.15),
    "svg2": (0.97, 0.9, 0.8, 0.6),
    "radial": (0.8, 0.4, 0.2, 0.1),
    "sol": (0.0, 0.5, 1.0, 2.0),
    "pisa": (0.5, 0.3, 0.2, 0.125),
    "clusterattention": (0.5, 0.3, 0.2, 0.1),
    "sparsepr": (0.5, 0.35, 0.22, 0.12),
    "svg-ear": (0.97, 0.9, 0.8, 0.6),
    "xattention": (0.97, 0.9, 0.8, 0.6),
    "bsa": (0.97, 0.9, 0.8, 0.6),
    "draft": (0.4, 0.6, 0.75, 0.85),
    "vsa": (0.4, 0.6, 0.75, 0.9),
    "rainfusion": (0.4, 0.5, 0.64, 0.8),
    "rainfusion2": (0.4, 0.6, 0.8, 0.9),
    "adacluster": (500, 250, 94, 40),
    "adaspa": (0.4, 0.6, 0.8, 0.9),
    "dsv": (0.4, 0.6, 0.75, 0.87),
    "vmoba": (0.6, 0.4, 0.25, 0.1),
}
_OWN = (OURS, PAPER)


class TradeoffStudy:
    """Curves of quality against speed-up."""

    name = "tradeoff"
    title = "Quality against speed"
    paper = "Fig. 7"
    about = "Every method that has a setting for it, from little to much sparsity, one warm-up."

    def jobs(self, lab: Lab) -> list[Job]:
        """Return the runs of every sweep."""
        warm_up = lab.model.warm_up if lab.model else 0.2
        settings = []
        for name, values in SWEEPS.items():
            if not lab.wants("svoo" if name in _OWN else name):
                continue
            own = {OURS: our_mode, PAPER: paper_mode}
            base = own[name](lab) if name in own else find_method(name, lab.model_name)
            field = knob_of(name)
            for value in _thin(values, lab.scale.points):
                changes: dict[str, Any] = {field: value}
                if name == OURS:
                    changes["compensate"] = "far"
                config = lab.prepare(changed(lab, base, **changes), warm_up)
                settings.append(Setting(f"{name}, {field} {value:g}", config))
        scale = lab.scale
        size, prompts = scale.small, scale.prompts
        return run_jobs(lab, "sweeps", settings, size, prompts=prompts, turn=LAST)

    def show(self, results: Results) -> Section:
        """Return the curves, the table, and the verdict."""
        entries = read_entries(results, self.name)
        if not entries:
            return Section()
        shown, notes = _without_idle_knobs(entries)
        drawn = _draw(shown)
        title = f"All settings ({where(shown)}, with warm-up)"
        table = make_table(title, shown, note=" ".join(notes))
        return Section([_claim(entries)], [table] if drawn is None else [drawn, table])


def _without_idle_knobs(entries: Sequence[Entry]) -> tuple[list[Entry], list[str]]:
    """Return the entries without settings that made the same videos as another one of the method,
    and a sentence about each method whose knob changed nothing."""
    quality = by_prompt(entries, PSNR)
    names: dict[str, list[str]] = {}
    for setting in dict.fromkeys(entry.setting for entry in entries):
        names.setdefault(setting.partition(", ")[0], []).append(setting)
    idle, notes = set(), []
    for name, own in names.items():
        # The method's own value was run by other studies too: it has most times.
        first = max(own, key=lambda setting: len(by_prompt(entries, SPEED_UP).get(setting, {})))
        same = {
            setting
            for setting in own
            if setting != first
            and quality.get(setting)
            and all(
                quality.get(first, {}).get(prompt) == value
                for prompt, value in quality[setting].items()
            )
        }
        if same:
            idle |= same
            knob = own[0].partition(", ")[2].rpartition(" ")[0]
            notes.append(
                f"{name} makes the same videos at {len(same) + 1} values of its {knob}: one is "
                "shown."
            )
    return [entry for entry in entries if entry.setting not in idle], notes


def knob_of(name: str) -> str:
    """Return the setting that a sweep changes: the method's knob; of paper mode it is mass."""
    if name == PAPER:
        return "mass"
    knobs = {row.name: row.knob for row in available_methods()}
    knob = knobs["svoo" if name == OURS else name]
    assert knob is not None  # a method without one is not in the list
    return knob.setting


def _thin(values: tuple[float, ...], points: int) -> list[float]:
    """Return so many of the values, the ends among them."""
    indices = np.linspace(0, len(values) - 1, min(points, len(values))).round().astype(int)
    return [values[index] for index in indices]


def curves(entries: Sequence[Entry]) -> dict[str, list[tuple[float, float]]]:
    """Return (speed-up, PSNR), medians over prompts, of each method's settings."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, point in points(entries).items():
        found.setdefault(name.partition(", ")[0], []).append(point)
    return found


def _draw(entries: Sequence[Entry]) -> Plot | None:
    """Draw the curves; None if there is no point of any."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5.6), layout="constrained")
    axes, drawn = figure.subplots(), False
    for number, (name, curve) in enumerate(curves(entries).items()):
        shown = [point for point in curve if np.isfinite(point[1])]  # in the order of the knob
        if not shown:
            continue
        thick = name in _OWN
        width, style = 2.4 if thick else 1.0, ("-", "--", ":")[number % 3]
        drawn = True
        axes.plot(
            *np.array(shown).T, marker="o", markersize=3, label=name, linewidth=width, ls=style
        )
    if not drawn:
        return None
    axes.set(xlabel="speed-up of the denoising loop", ylabel="PSNR against dense, dB")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=7, ncols=2)
    note = "Each curve is one method from little to much sparsity; medians over prompts."
    return Plot("tradeoff", "Quality against speed-up", as_png(figure), note)


def _claim(entries: Sequence[Entry]) -> Claim:
    """Judge whether quality falls as sparsity grows in paper mode, by the ends of its sweep."""
    field, values = knob_of(PAPER), SWEEPS[PAPER]
    quality = by_prompt(entries, PSNR)
    ends = [quality.get(f"{PAPER}, {field} {value:g}", {}) for value in (values[0], values[-1])]
    lost = paired(*ends)
    verdict: Verdict = verdict_of(lost)
    figure = "nothing was run"
    if lost is not None:
        figure = f"from {field} {values[0]:g} to {values[-1]:g} it loses {lost.median:.1f} dB"
        figure += f" ({lost.low:.1f} to {lost.high:.1f})"
    said = "in the paper (Fig. 7) quality falls gradually"
    return Claim("Quality falls as sparsity grows", verdict, figure, said=said)
