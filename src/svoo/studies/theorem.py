"""The paper's Theorem 1: how the variance of logits changes with the tokens that are seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from svoo.core.density import logit_variance
from svoo.core.random import mix_seeds, seeded
from svoo.core.validate import default_scale
from svoo.methods.base import Call
from svoo.studies.base import Cell, Claim, Job, Plot, Section, Table, Verdict, as_png, per_input
from svoo.studies.lab import Lab
from svoo.studies.results import Results
from svoo.studies.statistics import LEAST_PROMPTS, interval

DELTA = 0.05  # the bound holds with probability 1 - DELTA
_DRAWS = 8
_LEAST = 16  # tokens
_RATE = -0.5  # the power of n in the theorem


@dataclass(frozen=True)
class TheoremRow:
    """One layer: the variance of logits over all `total` tokens by head; for growing numbers of
    sampled tokens its mean deviation from that and the bound with C = 1, means over heads.
    Deviations are those of draws from many more tokens: drawn without return from `total`, they
    were smaller by the root of 1 - n / total."""

    prompt: str
    layer: int
    total: int
    variance: list[float]
    tokens: list[int]
    deviation: list[float]
    bound: list[float]


class TheoremStudy:
    """The stability bound against what is measured."""

    name = "theorem"
    title = "The stability bound"
    paper = "Theorem 1"
    about = (
        "The variance of the logits on n sampled tokens against that on all: it should deviate by "
        "1 / sqrt(n) or less. The bound is drawn with its unknown constant C set to 1, for "
        "queries and keys as they enter attention (after norm and rotation, so that M is the "
        "identity)."
    )

    def jobs(self, lab: Lab) -> list[Job]:
        """Return one dense run per input, looked at in its middle step."""
        size, step = lab.scale.small, lab.scale.steps // 2

        def make(entry: Mapping[str, Any]) -> dict[str, Any]:
            rows: list[TheoremRow] = []

            def observe(call: Call, query: Tensor, key: Tensor) -> None:
                if call.step == step:
                    chance = seeded(mix_seeds(lab.seed, call.layer))
                    found = deviations(query, key, call.scale, chance)
                    rows.append(TheoremRow(entry["prompt"], call.layer, query.shape[2], *found))

            lab.look(entry, size, observe)
            return {"rows": [asdict(row) for row in rows]}

        return per_input(lab, size, make, draws=_DRAWS, least=_LEAST, without_return=True)

    def show(self, results: Results) -> Section:
        """Return the plot, the table by layer, and the verdict."""
        rows = results.rows_of(self.name, TheoremRow)
        if not rows or len(rows[0].tokens) < 2:
            return Section()
        return Section([_of_samples(rows), _of_inputs(rows)], [_draw(rows), _table(rows)])


def deviations(
    query: Tensor, key: Tensor, scale: float | None, chance: torch.Generator
) -> tuple[list[float], list[int], list[float], list[float]]:
    """Return the variance over all tokens by head, the numbers of sampled tokens, the mean
    absolute deviation at each, and the bound. query, key `[1, H, N, D]`."""
    whole = logit_variance(query, key, scale=scale)[0].double()
    total = query.shape[2]
    # A sample of half of the tokens deviates less because it is half of them: stop before.
    most = total // 4 if total >= 16 * _LEAST else total // 2
    counts = [_LEAST << power for power in range(32) if _LEAST << power <= most]
    found = []
    for count in counts:
        off = []
        for _ in range(_DRAWS):
            picked = torch.randperm(total, generator=chance)[:count].to(query.device)
            part = logit_variance(query[:, :, picked], key[:, :, picked], scale=scale)[0]
            off.append((part.double() - whole).abs())
        found.append(float(torch.stack(off).mean()) / math.sqrt(1 - count / total))
    bounds = [bound(query, key, scale, count) for count in counts]
    return whole.cpu().tolist(), counts, found, bounds


def bound(query: Tensor, key: Tensor, scale: float | None, count: int) -> float:
    """Return the theorem's bound with C = 1, the mean over heads: D scale^2 R^4 (sqrt(log(D /
    delta) / n) + log(D / delta) / n), R^4 from the largest query and key."""
    size = query.shape[3]
    radius = query.norm(dim=-1).amax(dim=2).square() * key.norm(dim=-1).amax(dim=2).square()
    rest = math.log(size / DELTA) / count
    factor = size * default_scale(query, scale) ** 2
    return factor * float(radius.double().mean()) * (math.sqrt(rest) + rest)


def slope(row: TheoremRow) -> float:
    """Return the power of n that the deviation falls with; -1/2 is the theorem's."""
    tokens, deviation = np.array(row.tokens), np.array(row.deviation)
    return float(np.polyfit(np.log(tokens), np.log(deviation.clip(min=1e-30)), 1)[0])


def between_inputs(rows: list[TheoremRow]) -> float:
    """Return the mean deviation of a layer's variance between inputs, relative to its mean."""
    parts = []
    for layer in {row.layer for row in rows}:
        values = np.array([row.variance for row in rows if row.layer == layer])
        parts.append(float((values.std(axis=0) / values.mean(axis=0)).mean()))
    return float(np.mean(parts))


def _of_samples(rows: list[TheoremRow]) -> Claim:
    """Judge the rate by the slowest layer, and the bound by the largest deviation."""
    layers = sorted({row.layer for row in rows})
    found = {
        layer: interval([slope(row) for row in rows if row.layer == layer]) for layer in layers
    }
    rates = {layer: rate for layer, rate in found.items() if rate is not None}
    slowest = max(rates, key=lambda layer: rates[layer].median)
    fastest = min(rates, key=lambda layer: rates[layer].median)
    worst = max(
        off / limit for row in rows for off, limit in zip(row.deviation, row.bound, strict=True)
    )
    rate = rates[slowest]
    verdict: Verdict = "cannot be told here"
    if rate.count >= LEAST_PROMPTS:
        low, high = round(rate.low, 3), round(rate.high, 3)
        if worst > 1 or low > _RATE:
            verdict = "does not hold"
        elif high <= _RATE:
            verdict = "holds"
    return Claim(
        "Sampling one input, the logits' variance deviates by 1 / sqrt(n) or less",
        verdict,
        f"{rate.count} prompts; in the slowest layer, {slowest}, it falls as n to the power "
        f"{rate.median:.2f} ({rate.low:.2f} to {rate.high:.2f}), in the fastest as "
        f"{rates[fastest].median:.2f}; the theorem's is {_RATE}; at most {worst:.1e} of the bound "
        "with C = 1",
    )


def _of_inputs(rows: list[TheoremRow]) -> Claim:
    """Judge what the theorem is about: two inputs, taken for draws from one distribution."""
    layers = {row.layer for row in rows}
    beyond = _beyond_sampling(rows)
    enough = len({row.prompt for row in rows}) >= LEAST_PROMPTS
    verdict: Verdict = "cannot be told here"
    if enough and beyond == 0:
        verdict = "holds"
    elif enough and beyond > len(layers) / 2:
        verdict = "does not hold"
    return Claim(
        "Two inputs deviate by no more than samples of one input do",
        verdict,
        f"between inputs the variance deviates by {between_inputs(rows):.1%} of its mean, which "
        f"in {beyond} of {len(layers)} layers is more than {rows[0].tokens[-1]:,} sampled tokens "
        "of one input do",
    )


def _slope_of(rows: list[TheoremRow], layer: int) -> float:
    return float(np.mean([slope(row) for row in rows if row.layer == layer]))


def _sampled(rows: list[TheoremRow], layer: int) -> float:
    """Return the deviation of a layer at the most sampled tokens, relative to its variance."""
    here = [row for row in rows if row.layer == layer]
    mean = np.mean([row.variance for row in here])
    return float(np.mean([row.deviation[-1] for row in here]) / mean)


def _beyond_sampling(rows: list[TheoremRow]) -> int:
    """Return in how many layers inputs differ by more than samples of one input do."""
    layers = {row.layer for row in rows}
    return sum(
        between_inputs([row for row in rows if row.layer == layer]) > _sampled(rows, layer)
        for layer in layers
    )


def _table(rows: list[TheoremRow]) -> Table:
    cells = []
    for layer in sorted({row.layer for row in rows}):
        here = [row for row in rows if row.layer == layer]
        texts = (
            str(layer),
            f"{np.mean([row.variance for row in here]):.3f}",
            f"{_slope_of(rows, layer):.2f}",
            f"{_sampled(rows, layer):.1%}",
            f"{between_inputs(here):.1%}",
        )
        cells.append([Cell(text) for text in texts])
    most = rows[0].tokens[-1]
    columns = [
        "layer",
        "variance",
        "power of n",
        f"deviation at {most:,} tokens",
        "between inputs",
    ]
    note = (
        f"{len({row.prompt for row in rows})} prompts. The theorem takes two inputs for draws "
        "from one distribution. Where the last column is larger than the one before it, inputs "
        "differ by more than sampling explains. With few tokens the products of a token with "
        "itself count, which makes the first deviations larger and the fall steeper."
    )
    return Table("Variance of the logits", columns, cells, note)


def _draw(rows: list[TheoremRow]) -> Plot:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.4), layout="constrained")
    axes = figure.subplots()
    for layer in sorted({row.layer for row in rows}):
        here = [row for row in rows if row.layer == layer]
        line = np.mean([row.deviation for row in here], axis=0)
        axes.loglog(here[0].tokens, line, marker=".", label=f"layer {layer}")
    limit = np.mean([row.bound for row in rows], axis=0)
    axes.loglog(rows[0].tokens, limit, color="black", linestyle="--", label="bound, C = 1")
    axes.set(xlabel="sampled tokens n", ylabel="deviation of the logits' variance")
    axes.set_xticks(rows[0].tokens, [f"{count:,}" for count in rows[0].tokens])
    axes.set_xticks([], minor=True)
    axes.legend(fontsize=7)
    axes.grid(visible=True, which="both", alpha=0.3)
    return Plot("theorem", "Deviation against the bound", as_png(figure), "Means over prompts.")
