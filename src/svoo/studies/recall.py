"""The paper's Fig. 9: recall against density of co-clusters and of SVG2's k-means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from svoo.core.cluster_counts import default_clusters
from svoo.core.clustering import CoClusters, co_cluster
from svoo.core.kmeans import k_means
from svoo.core.plan import plan_from_clusters
from svoo.core.quality import recall
from svoo.core.random import mix_seeds, seeded
from svoo.core.selection import select_blocks
from svoo.methods.base import Call
from svoo.studies.base import (
    MORE_RECALL,
    Cell,
    Claim,
    Job,
    Plot,
    Section,
    Table,
    Verdict,
    as_png,
    per_input,
)
from svoo.studies.comparisons import say_difference, verdict_of
from svoo.studies.lab import Lab
from svoo.studies.results import Results
from svoo.studies.statistics import Interval, interval

BUDGETS = (0.03, 0.06, 0.12, 0.2, 0.3, 0.45, 0.6)
DENSITIES = (0.1, 0.2, 0.3, 0.5)  # at which curves are compared
CO, SHORT, LONG = "co-clusters", "k-means, 2 iterations", "k-means, 50 iterations (SVG2's)"
_ROWS = 256
_PARTS = (0.3, 0.6, 0.9)  # of a run, where it is looked at


@dataclass(frozen=True)
class RecallRow:
    """Curves of one layer at one step: (density, recall) by kind of clusters, means over heads."""

    prompt: str
    tokens: int | None
    layer: int
    step: int
    curves: dict[str, list[tuple[float, float]]]


class RecallStudy:
    """Recall of co-clusters and k-means at equal density."""

    name = "recall"
    title = "Recall of co-clusters and of k-means"
    paper = "Fig. 9"
    about = (
        "The attention that the kept blocks hold against the pairs that they cost: the paper's "
        "co-clusters and k-means, with equal counts, the same first centroids and the same rule."
    )

    def jobs(self, lab: Lab) -> list[Job]:
        """Return one dense run per input, looked at in three steps."""
        size, steps = lab.scale.small, lab.scale.steps
        looked_at = {min(steps - 1, int(part * steps)) for part in _PARTS}

        def make(entry: Mapping[str, Any]) -> dict[str, Any]:
            rows: list[RecallRow] = []

            def observe(call: Call, query: Tensor, key: Tensor) -> None:
                if call.step in looked_at:
                    seed = mix_seeds(lab.seed, call.layer, call.step)
                    curves = measure(query, key, call.scale, seed)
                    where = lab.tokens(size), call.layer, call.step
                    rows.append(RecallRow(entry["prompt"], *where, curves))

            lab.look(entry, size, observe)
            return {"rows": [asdict(row) for row in rows]}

        return per_input(lab, size, make, budgets=BUDGETS, parts=_PARTS, rows=_ROWS)

    def show(self, results: Results) -> Section:
        """Return curves by layer, differences at equal density, and the verdict."""
        rows = results.rows_of(self.name, RecallRow)
        if not rows:
            return Section()
        fair, long = (_gain(rows, other) for other in (SHORT, LONG))
        assert fair is not None and long is not None
        claims = [
            Claim(
                MORE_RECALL,
                verdict_of(long),
                f"the mean over layers: {say_difference(long, ' points')} against the 50 "
                f"iterations that SVG2 makes of its first labels ({_by_layer(rows, LONG)}); "
                f"{say_difference(fair, ' points')} against as few as the co-clusters have "
                f"({_by_layer(rows, SHORT)})",
                said="in the paper (Fig. 9) consistently higher",
            ),
            Claim(
                "Co-clustering has more recall than k-means with as many iterations",
                verdict_of(fair),
                say_difference(fair, " points"),
                of_paper=False,
            ),
        ]
        return Section(claims, [_table(rows), _draw(rows)])


def measure(
    query: Tensor, key: Tensor, scale: float | None, seed: int
) -> dict[str, list[tuple[float, float]]]:
    """Return (density, recall) at growing budgets for each kind of clusters of query, key `[1, H,
    N, D]`: means over heads."""
    counts = default_clusters(query.shape[2])
    kinds = {
        CO: co_cluster(query, key, *counts, generator=seeded(seed), check=False),
        SHORT: k_means(query, key, *counts, generator=seeded(seed), check=False),
        LONG: k_means(query, key, *counts, iterations=50, generator=seeded(seed), check=False),
    }
    return {name: find_curve(query, key, found, scale, seed) for name, found in kinds.items()}


def find_curve(
    query: Tensor, key: Tensor, clusters: CoClusters, scale: float | None, seed: int
) -> list[tuple[float, float]]:
    """Return (density, recall) of plans from these clusters at growing budgets, means over heads.
    query, key `[1, H, N, D]`."""
    curve = []
    for budget in BUDGETS:
        budgets = torch.full((query.shape[1],), budget, device=query.device)
        # theta 1 and hardly any mass: the budget alone decides, in tokens.
        keep = select_blocks(
            clusters, budgets, mass=1e-6, theta=1.0, scale=scale, unit="tokens", check=False
        )
        plan = plan_from_clusters(clusters, keep, compensate=False)
        rows = min(_ROWS, query.shape[2])
        kept = recall(query, key, plan, rows=rows, scale=scale, generator=seeded(seed))
        curve.append((round(float(plan.density().mean()), 5), round(float(kept.mean()), 5)))
    return curve


def at_density(curve: list[tuple[float, float]], density: float) -> float:
    """Return a curve's recall at a density, in a straight line between its points; no pairs hold
    no attention, all pairs all of it."""
    points = sorted([(0.0, 0.0), *((float(x), float(y)) for x, y in curve), (1.0, 1.0)])
    densities, values = np.array(points).T
    return float(np.interp(density, densities, values))


def _gain(rows: list[RecallRow], other: str) -> Interval | None:
    """Return how many points of recall co-clusters have more, by prompt."""
    by_prompt: dict[str, list[float]] = {}
    for row in rows:
        by_prompt.setdefault(row.prompt, []).append(_gain_of(row, other))
    return interval([float(np.mean(values)) for values in by_prompt.values()])


def _gain_of(row: RecallRow, other: str) -> float:
    gains = [
        100 * (at_density(row.curves[CO], density) - at_density(row.curves[other], density))
        for density in DENSITIES
    ]
    return float(np.mean(gains))


def _by_layer(rows: list[RecallRow], other: str) -> str:
    """Return in how many layers co-clusters have more recall, less, or neither for certain."""
    counts = Counter(
        verdict_of(_gain([row for row in rows if row.layer == layer], other))
        for layer in {row.layer for row in rows}
    )
    words: dict[Verdict, str] = {
        "holds": "more",
        "does not hold": "less",
        "cannot be told here": "open",
    }
    said = [f"{word} in {counts[verdict]}" for verdict, word in words.items()]
    return f"{', '.join(said)} of {counts.total()} layers"


def _table(rows: list[RecallRow]) -> Table:
    layers = sorted({row.layer for row in rows})
    cells = []
    for layer in layers:
        here = [row for row in rows if row.layer == layer]
        for kind in (CO, SHORT, LONG):
            values = [
                float(np.mean([at_density(row.curves[kind], density) for row in here]))
                for density in DENSITIES
            ]
            cells.append([Cell(str(layer)), Cell(kind), *(Cell(f"{v:.3f}") for v in values)])
    columns = ["layer", "clusters", *(f"density {density:g}" for density in DENSITIES)]
    prompts = len({row.prompt for row in rows})
    note = f"{prompts} prompts. Means over prompts, steps and heads."
    return Table("Recall at equal density", columns, cells, note)


def _draw(rows: list[RecallRow]) -> Plot:
    from matplotlib.figure import Figure

    layers = sorted({row.layer for row in rows})
    columns = min(3, len(layers))
    lines = -(-len(layers) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.6 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, layer in zip(panels, layers, strict=False):
        here = [row for row in rows if row.layer == layer]
        for kind in (CO, SHORT, LONG):
            points = np.mean([row.curves[kind] for row in here], axis=0)
            axes.plot(points[:, 0], points[:, 1], marker=".", label=kind)
        axes.set_title(f"layer {layer}", fontsize=9)
        axes.set(xlabel="density", ylabel="recall", ylim=(0, 1))
    for axes in panels[len(layers) :]:
        axes.set_axis_off()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return Plot("recall", "Recall against density", as_png(figure), "Means over prompts.")
