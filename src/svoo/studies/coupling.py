"""The paper's Fig. 3: the best partition of the keys depends on who asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from svoo.core.cluster_counts import default_clusters
from svoo.core.clustering import co_cluster
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
from svoo.studies.results import Results
from svoo.studies.small_example import Example, find_example
from svoo.studies.statistics import interval


@dataclass(frozen=True)
class CouplingRow:
    """Shared information of key labels made for two groups of queries, mean over heads, by layer:
    halves of one group (`within`) and different groups (`across`)."""

    prompt: str
    tokens: int | None
    step: int
    within: list[float]
    across: list[float]
    example: dict[str, Any] | None


class CouplingStudy:
    """How much the partition of the keys depends on the queries."""

    name = "coupling"
    title = "The partition of the keys and who asks"
    paper = "Fig. 3"
    about = (
        "Queries are split into two groups along their main axis. Keys are co-clustered for each "
        "group, from the same initial centroids. Normalised mutual information of the two "
        "partitions, beside that for two random halves of one group."
    )

    def jobs(self, lab: Lab) -> list[Job]:
        """Return one dense run per input, looked at in its middle step."""
        size, step = lab.scale.small, lab.scale.steps // 2

        def make(entry: Mapping[str, Any]) -> dict[str, Any]:
            within: list[float] = []
            across: list[float] = []
            examples: list[Example] = []

            def observe(call: Call, query: Tensor, key: Tensor) -> None:
                if call.step != step:
                    return
                chance = seeded(mix_seeds(lab.seed, call.layer))
                same, other = shared_information(query, key, chance)
                within.append(same)
                across.append(other)
                if entry is lab.inputs[0]:
                    examples.append(find_example(query, key, call.layer, chance))

            lab.look(entry, size, observe)
            best = max(examples, key=lambda found: found.margin, default=None)
            example = None if best is None else asdict(best)
            facts = entry["prompt"], lab.tokens(size), step
            return asdict(CouplingRow(*facts, within, across, example))

        return per_input(lab, size, make)

    def show(self, results: Results) -> Section:
        """Return the table by layer, the small example, and the verdict."""
        rows = [CouplingRow(**data) for data in results.of_kind(self.name).values()]
        if not rows:
            return Section()
        layers = range(len(rows[0].within))
        cells = [
            [Cell(str(layer)), *(Cell(f"{value:.3f}") for value in _means(rows, layer))]
            for layer in layers
        ]
        gap = interval([float(np.mean(row.within) - np.mean(row.across)) for row in rows])
        assert gap is not None
        claim = Claim(
            COUPLING_MATTERS,
            verdict_of(gap),
            f"shared information of key partitions, same group of queries less another: "
            f"{say_difference(gap, '', 3)}; any gap counts, for k-means of the "
            "keys alone would have none; that it makes better plans is what recall shows",
        )
        columns = ["layer", "halves of one group", "two groups"]
        note = "Normalised mutual information: 1 is the same partition. Means over prompts."
        table = Table("Partitions of the keys made for two groups", columns, cells, note)
        drawn = [_draw(Example(**row.example)) for row in rows if row.example is not None]
        return Section([claim], [table, *drawn[:1]])


def _means(rows: list[CouplingRow], layer: int) -> tuple[float, float]:
    within = float(np.mean([row.within[layer] for row in rows]))
    return within, float(np.mean([row.across[layer] for row in rows]))


def shared_information(query: Tensor, key: Tensor, chance: torch.Generator) -> tuple[float, float]:
    """Return the shared information of key labels made for halves of one group of the queries, and
    for different groups: means over heads. query, key `[1, H, N, D]`."""
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
    labels = []
    for part in parts:
        shown = query.gather(2, part.unsqueeze(-1).expand(*part.shape, query.shape[3]))
        initial = shown[:, :, : counts[0]].float(), key[:, :, drawn].float()
        found = co_cluster(shown, key, *counts, initial=initial, check=False)
        labels.append(found.key.labels)
    same = [mutual_information(labels[0], labels[1]), mutual_information(labels[2], labels[3])]
    other = [mutual_information(labels[0], labels[2]), mutual_information(labels[1], labels[3])]
    return float(torch.stack(same).mean()), float(torch.stack(other).mean())


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
