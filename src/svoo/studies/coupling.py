"""The paper's Fig. 3: the best partition of the keys depends on who asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from svoo.core.cluster_counts import default_clusters
from svoo.core.clustering import CoClusters, co_cluster
from svoo.core.random import mix_seeds, seeded
from svoo.methods.base import Call
from svoo.studies.base import (
    COUPLING_MATTERS,
    Cell,
    Claim,
    Job,
    Plot,
    Section,
    Table,
    as_png,
    per_input,
)
from svoo.studies.comparisons import say_difference, verdict_of
from svoo.studies.information import mutual_information
from svoo.studies.lab import Lab
from svoo.studies.recall import BUDGETS, at_density, find_curve
from svoo.studies.results import Results
from svoo.studies.small_example import Example, find_example
from svoo.studies.statistics import Interval, interval

DENSITY = 0.2  # at which recall is compared
# Columns of the table: what is compared, and which queries a partition was made for.
_WHAT, _WHO = ("recall", "information"), ("like them", "others")


@dataclass(frozen=True)
class CouplingRow:
    """Key labels made for two groups of queries, means over heads, by layer: halves of one group
    (`within`) and different groups (`across`). The information that two partitions share, and the
    recall of a half's queries with the partition that was made for the other half, or for the
    other group, at the density `DENSITY`."""

    prompt: str
    tokens: int | None
    step: int
    within: list[float]
    across: list[float]
    recall_within: list[float]
    recall_across: list[float]
    example: dict[str, Any] | None


class CouplingStudy:
    """How much the partition of the keys depends on the queries."""

    name = "coupling"
    title = "The partition of the keys and who asks"
    paper = "Fig. 3"
    about = (
        "Queries are split into two groups along their main axis, and each group into two random "
        "halves. Keys are co-clustered for each half, from the same initial centroids. How much "
        "attention do a half's queries keep with the partition that was made for the other half "
        "of their group, and how much with one that was made for the other group? Beside it the "
        "normalised mutual information of the partitions."
    )

    def jobs(self, lab: Lab) -> list[Job]:
        """Return one dense run per input, looked at in its middle step."""
        size, step = lab.scale.small, lab.scale.steps // 2

        def make(entry: Mapping[str, Any]) -> dict[str, Any]:
            found: list[Coupling] = []
            examples: list[Example] = []

            def observe(call: Call, query: Tensor, key: Tensor) -> None:
                if call.step != step:
                    return
                chance = seeded(mix_seeds(lab.seed, call.layer))
                found.append(compare_partitions(query, key, call.scale, chance))
                if entry is lab.inputs[0]:
                    examples.append(find_example(query, key, call.layer, chance))

            lab.look(entry, size, observe)
            best = max(examples, key=lambda found: found.margin, default=None)
            example = None if best is None else asdict(best)
            row = CouplingRow(
                entry["prompt"],
                lab.tokens(size),
                step,
                within=[layer.within for layer in found],
                across=[layer.across for layer in found],
                recall_within=[layer.recall_within for layer in found],
                recall_across=[layer.recall_across for layer in found],
                example=example,
            )
            return asdict(row)

        return per_input(lab, size, make, budgets=BUDGETS, density=DENSITY)

    def show(self, results: Results) -> Section:
        """Return the table by layer, the small example, and the verdict."""
        rows = results.rows_of(self.name, CouplingRow)
        if not rows:
            return Section()
        layers = range(len(rows[0].within))
        cells = [
            [Cell(str(layer)), *(Cell(f"{value:.3f}") for value in _means(rows, layer))]
            for layer in layers
        ]
        recall = [(row.recall_within, row.recall_across) for row in rows]
        points = _gap(recall, 100)
        shared = _gap([(row.within, row.across) for row in rows])
        claim = Claim(
            COUPLING_MATTERS,
            verdict_of(points),
            f"at density {DENSITY:g} queries keep {say_difference(points, ' points')} more of "
            "their attention with a partition of the keys that was made for queries like them "
            f"than with one for others, more in {_layers_with_more(recall)} layers; shared "
            f"information of the partitions {say_difference(shared, '', 3)} higher",
            said="in the paper (Fig. 3) an illustration, no figures",
        )
        columns = ["layer", *(f"{what}: {who}" for what in _WHAT for who in _WHO)]
        note = (
            f"{len(rows)} prompts. Normalised mutual information: 1 is the same partition. "
            f"Recall: the attention that kept blocks hold at density {DENSITY:g}. Means over "
            "prompts."
        )
        table = Table("Partitions of the keys made for two groups", columns, cells, note)
        drawn = [_draw(Example(**row.example)) for row in rows if row.example is not None]
        return Section([claim], [table, *drawn[:1]])


def _gap(pairs: list[tuple[list[float], list[float]]], factor: float = 1) -> Interval:
    """Return by how much the first of two columns is above the second, means over layers."""
    found = interval([factor * float(np.mean(a) - np.mean(b)) for a, b in pairs])
    assert found is not None  # there are rows
    return found


def _layers_with_more(pairs: list[tuple[list[float], list[float]]]) -> str:
    """Return in how many layers the first of two columns is above the second for certain."""
    layers = range(len(pairs[0][0]))
    more = sum(
        verdict_of(interval([a[layer] - b[layer] for a, b in pairs])) == "holds"
        for layer in layers
    )
    return f"{more} of {len(layers)}"


def _means(rows: list[CouplingRow], layer: int) -> list[float]:
    columns = ("recall_within", "recall_across", "within", "across")
    return [float(np.mean([getattr(row, name)[layer] for row in rows])) for name in columns]


class Coupling(NamedTuple):
    """What two halves of one group, and two groups, have in common; see `CouplingRow`."""

    within: float
    across: float
    recall_within: float
    recall_across: float


def compare_partitions(
    query: Tensor, key: Tensor, scale: float | None, chance: torch.Generator
) -> Coupling:
    """Return shared information of key labels and recall of queries with them, for halves of one
    group of the queries and for different groups: means over heads. query, key `[1, H, N, D]`."""
    tokens = query.shape[2]
    quarter = max(1, tokens // 4)
    centred = query - query.mean(dim=2, keepdim=True)
    axis = torch.linalg.eigh((centred.transpose(2, 3) @ centred).double())[1][..., -1]
    order = (centred.double() @ axis.unsqueeze(-1)).squeeze(-1).argsort(dim=2)  # [1, H, N]
    halves = order[..., : 2 * quarter], order[..., -2 * quarter :]
    mixed = torch.randperm(halves[0].shape[2], generator=chance).to(order.device)
    parts = [
        half[..., picked] for half in halves for picked in (mixed[:quarter], mixed[-quarter:])
    ]
    counts = default_clusters(tokens)
    counts = min(counts[0], quarter), min(counts[1], key.shape[2])
    drawn = torch.randperm(key.shape[2], generator=chance)[: counts[1]].to(key.device)
    shown = [
        query.gather(2, part.unsqueeze(-1).expand(*part.shape, query.shape[3])) for part in parts
    ]
    made = []
    for side in shown:
        initial = side[:, :, : counts[0]].float(), key[:, :, drawn].float()
        made.append(co_cluster(side, key, *counts, initial=initial, check=False))
    labels = [found.key.labels for found in made]

    def shared(first: int, second: int) -> float:
        return float(mutual_information(labels[first], labels[second]).mean())

    def keeps(who: int, whose: int) -> float:
        clusters = CoClusters(made[who].query, made[whose].key)
        return at_density(find_curve(shown[who], key, clusters, scale, 0), DENSITY)

    return Coupling(
        float(np.mean([shared(0, 1), shared(2, 3)])),
        float(np.mean([shared(0, 2), shared(1, 3)])),
        float(np.mean([keeps(0, 1), keeps(1, 0), keeps(2, 3), keeps(3, 2)])),
        float(np.mean([keeps(0, 2), keeps(1, 3), keeps(2, 0), keeps(3, 1)])),
    )


def _draw(example: Example) -> Plot:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.scatter(example.first, example.second, s=5, color="lightgray")
    for number, index in enumerate(example.keys, start=1):
        at = example.first[index], example.second[index]
        axes.scatter(*at, s=36)
        axes.annotate(f"k{number}", at, (5, 4), textcoords="offset points")
    axes.axvline(0, color="gray", linewidth=0.6)
    axes.axhline(0, color="gray", linewidth=0.6)
    axes.set(xlabel="logit for query q1 (in deviations)", ylabel="logit for query q2")
    note = (
        f"Real tokens of layer {example.layer}, head {example.head}. For q1 the keys fall into "
        "{k1, k2} and {k3, k4}, for q2 into {k1, k4} and {k2, k3}: no one partition serves both."
    )
    return Plot("coupling", "The paper's small example, from real tokens", as_png(figure), note)
