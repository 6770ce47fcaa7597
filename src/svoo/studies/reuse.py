"""The paper's Fig. 8: how long labels stay good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor

from svoo.core.cluster_counts import default_clusters
from svoo.core.clustering import co_cluster
from svoo.core.random import mix_seeds, seeded
from svoo.methods.base import Call
from svoo.methods.svoo.config import SVOOConfig
from svoo.plugin.request import known_model
from svoo.studies.base import TABLES, Claim, Job, Plot, Section, Table, Verdict, as_png, per_input
from svoo.studies.comparisons import (
    PSNR,
    SPEED_UP,
    Entry,
    by_prompt,
    difference,
    make_table,
    read_entries,
    run_jobs,
    say_difference,
    where,
)
from svoo.studies.information import mutual_information
from svoo.studies.lab import Lab
from svoo.studies.results import Results
from svoo.studies.runs import Setting
from svoo.studies.settings import changed, paper_mode
from svoo.studies.statistics import LEAST_PROMPTS, interval

INTERVALS = (1, 2, 4, 8, 20)
NEGLIGIBLE = 0.5  # dB
_ALIKE = 0.1  # of shared information: a smaller loss counts as none
_FIRST = 0.2  # of the run: labels are made when the warm-up is over


@dataclass(frozen=True)
class LabelsRow:
    """Shared information of the first labels with those of later steps, by layer and step, mean
    over heads; `other_draw`: with labels of the same step from other first centroids, by layer."""

    prompt: str
    steps: list[int]
    shared: list[list[float]]
    other_draw: list[float]


class ReuseStudy:
    """Labels across steps, and quality and time against the reuse interval."""

    name = "reuse"
    title = "How long labels stay good"
    paper = "Fig. 8"
    about = (
        "Normalised mutual information of key labels made after the warm-up with those made at "
        "each later step; and PSNR and time of paper mode when labels are remade more seldom."
    )

    def jobs(self, lab: Lab) -> list[Job]:
        """Return one dense run per input to look at labels, and runs at several intervals."""
        scale = lab.scale
        first = min(scale.steps - 1, int(_FIRST * scale.steps))

        def make(entry: Mapping[str, Any]) -> dict[str, Any]:
            watch = LabelWatch(first, lab.seed)
            lab.look(entry, scale.small, watch.observe)
            return asdict(watch.row(entry["prompt"]))

        known = {*INTERVALS, paper_mode(lab).recluster_every}
        intervals = [every for every in sorted(known) if every == 1 or every < 2 * scale.steps]
        settings = [
            Setting(f"every {every}", changed(lab, paper_mode(lab), recluster_every=every))
            for every in intervals
        ]
        jobs = per_input(lab, scale.small, make, turn=TABLES, first=first)
        if not lab.wants("svoo"):
            return jobs
        return jobs + run_jobs(
            lab, "intervals", settings, scale.small, prompts=scale.prompts, turn=TABLES
        )

    def show(self, results: Results) -> Section:
        """Return both plots, the table, and the verdict."""
        rows = results.rows_of(self.name, LabelsRow)
        entries = read_entries(results, self.name)
        parts: list[Table | Plot] = []
        if rows:
            parts.append(_draw_labels(rows))
        if entries:
            title = f"Paper mode by reuse interval ({where(entries)}, with warm-up)"
            parts += [make_table(title, entries, minus="every 1"), _draw_runs(entries)]
        own = _own_interval(results.about["model"])
        claims = [_claim(entries, own)] if entries else []
        return Section([*claims, *([_alike(rows)] if rows else [])], parts)


class LabelWatch:
    """Makes labels at every step from `first` on and compares them with the first ones."""

    def __init__(self, first: int, seed: int) -> None:
        """Remember nothing yet."""
        self._first = first
        self._seed = seed
        self._labels: dict[int, Tensor] = {}
        self._other: dict[int, float] = {}
        self._shared: dict[int, dict[int, float]] = {}

    def observe(self, call: Call, query: Tensor, key: Tensor) -> None:
        """Look at a call's query and key `[1, H, N, D]`."""
        if call.step < self._first:
            return
        labels = self._make(query, key, call.layer, 0)
        if call.layer not in self._labels:
            self._labels[call.layer] = labels
            other = self._make(query, key, call.layer, 1)
            self._other[call.layer] = float(mutual_information(labels, other).mean())
            return
        found = mutual_information(self._labels[call.layer], labels)
        self._shared.setdefault(call.layer, {})[call.step] = float(found.mean())

    def _make(self, query: Tensor, key: Tensor, layer: int, draw: int) -> Tensor:
        chance = seeded(mix_seeds(self._seed, layer, draw))
        counts = default_clusters(query.shape[2])
        return co_cluster(query, key, *counts, generator=chance, check=False).key.labels

    def row(self, prompt: str) -> LabelsRow:
        """Return what was seen."""
        layers = sorted(self._labels)
        seen = [set(self._shared.get(layer, {})) for layer in layers]
        steps = sorted(set.intersection(*seen)) if seen else []
        shared = [[self._shared[layer][step] for step in steps] for layer in layers]
        return LabelsRow(prompt, steps, shared, [self._other[layer] for layer in layers])


def _draw_labels(rows: Sequence[LabelsRow]) -> Plot:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 4.2), layout="constrained")
    axes = figure.subplots()
    shared = np.mean([row.shared for row in rows], axis=0)
    for layer, line in enumerate(shared):
        axes.plot(rows[0].steps, line, marker=".", label=f"layer {layer}")
    ceiling = float(np.mean([row.other_draw for row in rows]))
    axes.axhline(ceiling, color="black", linestyle="--", label="same step, another draw")
    axes.set(xlabel="step", ylabel="normalised mutual information", ylim=(0, 1))
    axes.legend(fontsize=7, ncols=2)
    note = (
        "Labels of the first sparse step against later ones, means over prompts and heads. Even "
        "at the same step another draw of the first centroids gives other labels: the dashed line."
    )
    return Plot("reuse-labels", "Labels across steps", as_png(figure), note)


def _draw_runs(entries: Sequence[Entry]) -> Plot:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.4), layout="constrained")
    for axes, column in zip(figure.subplots(1, 2), (PSNR, SPEED_UP), strict=True):
        points = [
            (int(name.removeprefix("every ")), float(np.median(list(values.values()))))
            for name, values in by_prompt(entries, column).items()
            if name.startswith("every")
        ]
        axes.plot(*zip(*sorted(points), strict=True), marker="o")
        axes.set(xlabel="labels remade every ... steps", ylabel=column.name)
        axes.grid(visible=True, alpha=0.3)
    return Plot("reuse-runs", "Quality and speed against the interval", as_png(figure))


def _alike(rows: Sequence[LabelsRow]) -> Claim:
    """Judge whether labels of the last step share as much with the first ones as another draw at
    the same step does: then what changes is chance, and not the video."""
    gaps: dict[int, list[float]] = {}
    for row in rows:
        for layer, (shared, draw) in enumerate(zip(row.shared, row.other_draw, strict=True)):
            if shared:
                gaps.setdefault(layer, []).append(shared[-1] - draw)
    found = {layer: interval(values) for layer, values in gaps.items()}
    judged = {layer: gap for layer, gap in found.items() if gap and gap.count >= LEAST_PROMPTS}
    lower = [layer for layer, gap in judged.items() if gap.high < -_ALIKE]
    verdict: Verdict = "cannot be told here"
    if lower:
        verdict = "does not hold"
    elif judged and all(gap.low >= -_ALIKE for gap in judged.values()):
        verdict = "holds"
    ends = [row.shared[layer][-1] for row in rows for layer in gaps if row.shared[layer]]
    told = ", ".join(map(str, lower)) or "none"
    figure = (
        f"{len(rows)} prompts; shared information with the first labels at the last step "
        f"{min(ends, default=0):.2f} to {max(ends, default=0):.2f} over layers and prompts; "
        f"layers where that is at least {_ALIKE} less than another draw at the same step has: "
        f"{told}"
    )
    said = "in the paper (Fig. 8) similarity of labels remains high across steps"
    return Claim("Labels stay alike over the steps, in every layer", verdict, figure, said=said)


def _own_interval(model: str) -> int:
    """Return how often paper mode remakes the labels of a model: 20 where it is not in the
    catalogue."""
    return SVOOConfig.paper(model if known_model(model) else None).recluster_every


def _claim(entries: Sequence[Entry], own: int) -> Claim:
    """Judge whether the model's own interval loses less than half a dB."""
    lost = difference(entries, "every 1", f"every {own}", PSNR)
    text = f"Labels can be reused for {own} steps, as paper mode does, with negligible loss"
    if lost is None:
        return Claim(text, "cannot be told here", f"not run: every 1 and every {own} steps")
    verdict: Verdict = "cannot be told here"
    if lost.count >= LEAST_PROMPTS and lost.high < NEGLIGIBLE:
        verdict = "holds"
    elif lost.count >= LEAST_PROMPTS and lost.low > NEGLIGIBLE:
        verdict = "does not hold"
    figure = f"fresh labels at every step have {say_difference(lost, ' dB')}"
    figure = f"{where(entries)}: {figure}; below {NEGLIGIBLE} dB counts as negligible"
    return Claim(text, verdict, figure, said="in the paper the loss is negligible")
