"""The paper's Fig. 2: required density by layer and head, and how little it depends on the
input."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from svoo.studies.base import (
    INPUTS_ARE_ALIKE,
    LAYERS_DIFFER,
    Cell,
    Claim,
    Job,
    Plot,
    Section,
    Table,
    Verdict,
    as_png,
)
from svoo.studies.densities import density_jobs, read_densities
from svoo.studies.lab import MASSES, Lab
from svoo.studies.results import Results
from svoo.studies.statistics import LEAST_PROMPTS

STABLE = (
    0.25  # inputs matter little if they move density by less than this share of what layers do
)
_DRAWS = 2000

Density = NDArray[np.float64]  # [prompts, layers, heads]


class LayersStudy:
    """Required density by layer and head over inputs."""

    name = "layers"
    title = "Density by layer, head and input"
    paper = "Fig. 2 and appendix"
    about = (
        "The smallest fraction of keys that covers 80 % and 95 % of the attention, by layer and "
        "head, over inputs: box plots, and standard deviations over inputs, layers and heads."
    )

    def jobs(self, lab: Lab) -> list[Job]:
        """Return one measurement per input."""
        return density_jobs(lab, "by_head")

    def show(self, results: Results) -> Section:
        """Return box plots, deviations, and the verdicts on heterogeneity and stability."""
        density = read_densities(results, self.name, "by_head")
        if density is None:
            return Section()
        parts: list[Table | Plot] = [_deviations(density)]
        parts += [_draw(density[..., index], mass) for index, mass in enumerate(MASSES)]
        return Section(_claims(density[..., 0]), parts)


def over_inputs(density: Density) -> float:
    """Return the standard deviation of a layer's density over inputs, the mean over layers."""
    by_layer = density.mean(axis=2)
    return float(by_layer.std(axis=0, ddof=1).mean()) if len(density) > 1 else float("nan")


def over_layers(density: Density) -> float:
    """Return the standard deviation over layers of their mean density."""
    return float(density.mean(axis=(0, 2)).std())


def over_heads(density: Density) -> float:
    """Return the standard deviation over the heads of a layer, the mean over layers."""
    return float(density.mean(axis=0).std(axis=1).mean())


def bootstrap(density: Density, figure: Callable[[Density], float]) -> tuple[float, float]:
    """Return the 95 % interval of a figure over draws of prompts. A draw of one prompt alone says
    nothing about inputs and is drawn again."""
    chance = np.random.default_rng(0)
    values: list[float] = []
    while len(values) < _DRAWS:
        picked = chance.integers(len(density), size=len(density))
        if len(set(picked.tolist())) > 1:
            values.append(figure(density[picked]))
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def _deviations(density: Density) -> Table:
    rows = []
    for index, mass in enumerate(MASSES):
        here = density[..., index]
        figures = here.mean(), over_inputs(here), over_layers(here), over_heads(here)
        rows.append([Cell(f"{mass:.0%}"), *(Cell(_say(value)) for value in figures)])
    columns = ["mass", "mean density", "std over inputs", "std over layers", "std over heads"]
    note = f"Prompts: {len(density)}. Means over the measured steps of a run."
    return Table("Where density varies", columns, rows, note)


def _say(value: float) -> str:
    return "one input" if np.isnan(value) else f"{value:.4f}"


def _draw(density: Density, mass: float) -> Plot:
    from matplotlib.figure import Figure

    layers, heads = density.shape[1:]
    figure = Figure(figsize=(8, 5.6), layout="constrained")
    boxes, stems = figure.subplots(2, 1)
    positions = list(range(layers))
    boxes.boxplot([density[:, layer].mean(axis=1) for layer in positions], positions=positions)
    boxes.set(xlabel="layer", ylabel="density, mean over heads", ylim=(0, None))
    boxes.set_title(
        f"density at {mass:.0%} of the mass, by layer, boxes over {len(density)} inputs"
    )
    by_head = [density[:, layer, head] for layer in positions for head in range(heads)]
    stems.boxplot(by_head, widths=0.7, flierprops={"markersize": 2})
    stems.set(xlabel="layer, its heads side by side", ylabel="density", ylim=(0, None))
    stems.set_xticks([layer * heads + (heads + 1) / 2 for layer in positions], positions)
    for layer in range(1, layers):
        stems.axvline(layer * heads + 0.5, color="gray", linewidth=0.5)
    name = f"layers-{mass:g}"
    return Plot(name, f"Density at {mass:.0%} of the mass", as_png(figure))


def _claims(density: Density) -> list[Claim]:
    """Judge heterogeneity (layers differ by more than inputs move them) and stability (inputs move
    a layer by less than a quarter of that) at the paper's mass."""
    texts = LAYERS_DIFFER, INPUTS_ARE_ALIKE
    if len(density) < LEAST_PROMPTS:
        why = f"too few prompts: {len(density)}; the paper has {LEAST_PROMPTS}"
        return [Claim(text, "cannot be told here", why) for text in texts]
    means = density.mean(axis=(0, 2))
    # Draws with return are more alike than inputs are.
    apart = math.sqrt(len(density) / (len(density) - 1))
    excess = bootstrap(density, lambda drawn: over_layers(drawn) - apart * over_inputs(drawn))

    def moved(drawn: Density) -> float:
        return apart * over_inputs(drawn) / over_layers(drawn)

    share = bootstrap(density, moved)
    # One layer that stands out would make all others look stable.
    densest = int(means.argmax())
    rest = bootstrap(np.delete(density, densest, axis=1), moved) if len(means) > 2 else share
    differs: Verdict = (
        "holds" if excess[0] > 0 else "does not hold" if excess[1] < 0 else "cannot be told here"
    )
    stable: Verdict = (
        "holds"
        if max(share[1], rest[1]) < STABLE
        else "does not hold"
        if share[0] > STABLE
        else "cannot be told here"
    )
    inputs = density.mean(axis=2)
    lowest, highest = inputs.min(axis=0), inputs.max(axis=0)
    worst = int((highest / lowest.clip(min=1e-9)).argmax())
    return [
        Claim(
            texts[0],
            differs,
            f"layers' mean densities go from {means.min():.3f} to {means.max():.3f} (std "
            f"{over_layers(density):.4f}); std over layers less that over inputs {excess[0]:.4f} "
            f"to {excess[1]:.4f}",
        ),
        Claim(
            texts[1],
            stable,
            f"std over inputs is {over_inputs(density):.4f}, {share[0]:.0%} to {share[1]:.0%} of "
            f"that over layers, {rest[0]:.0%} to {rest[1]:.0%} without layer {densest}, the "
            f"densest (holds where both are below {STABLE:.0%}); relative to itself layer {worst} "
            f"moves most, from {lowest[worst]:.3f} to {highest[worst]:.3f}",
            said="in the paper (Fig. 2) highly consistent over 5 prompts",
        ),
    ]
