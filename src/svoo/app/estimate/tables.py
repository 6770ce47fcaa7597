"""Estimates as tables for people."""

from __future__ import annotations

from collections.abc import Iterator

from svoo.app.estimate.data import latencies
from svoo.app.estimate.estimate import Estimate, Video, estimate
from svoo.app.estimate.roofline import Rates
from svoo.catalogue import Model, find_model
from svoo.methods import find_method

GPUS = (1, 2, 4, 8)
METHODS = {"paper": "paper mode", "svoo": "ours"}
_PARTS = {
    "dense_calls": "attention of the warm-up",
    "kept_pairs": "kept pairs",
    "terms": "terms of what is left out",
    "clustering": "clustering",
    "selection": "selection and reordering",
    "rest": "rest: all but self-attention",
    "exchange": "exchange between GPUs",
}


def whole_video(model: Model) -> Video:
    """Return the video that a model makes unless it is asked for another."""
    return Video(model, model.frames, model.height, model.width, model.steps)


def lines(found: Estimate) -> list[str]:
    """Return an estimate as lines that fit a terminal."""
    fits = "fits" if found.peak_bytes <= found.memory_bytes else "DOES NOT FIT without --offload"
    rows = [
        f"{found.model}, {found.method}, {found.tokens:,} video tokens, {found.steps} steps, "
        f"{found.gpus} x {found.machine}",
        f"MODELLED, not measured. Rates: {found.rates}.",
        *_density(found),
        "",
        f"{'dense loop':30s} {found.dense_seconds:10.1f} s",
        f"{'sparse loop':30s} {found.sparse_seconds:10.1f} s   {found.speed_up:.2f}x",
    ]
    rows += [f"  {_PARTS[name]:28s} {part:10.1f} s" for name, part in found.parts.items()]
    return [
        *rows,
        f"{'were sparse calls free':30s} {found.bound:20.2f}x",
        f"{'were all attention free':30s} {found.bound_without_warm_up:20.2f}x",
        f"peak memory of each GPU {found.peak_bytes / 1e9:.1f} GB of "
        f"{found.memory_bytes / 1e9:.0f} GB: {fits}",
    ]


def _density(found: Estimate) -> list[str]:
    """Return what is known of the density; in capitals where that is nothing."""
    said = f"Density {found.density:.3f}: {found.density_from}."
    if not found.density_guessed:
        return [said]
    rows = [f"DENSITY {found.density:.3f} IS A GUESS, {found.density_from}."]
    for other in found.otherwise:
        rows.append(
            f"  {other.speed_up:.2f}x instead of {found.speed_up:.2f}x if it keeps "
            f"{other.density:.3f}: {other.keeps}."
        )
    return rows


def all_models(rates: Rates) -> Iterator[Estimate]:
    """Yield the estimates of the paper's seven models, in both modes, on 1 to 8 GPUs that their
    heads can be divided between."""
    for name in latencies():
        model = find_model(name)
        for method in METHODS:
            for gpus in GPUS:
                if model.heads % gpus == 0:
                    config = find_method(method, name)
                    yield estimate(whole_video(model), rates, config, gpus=gpus, name=method)


def markdown(rates: Rates) -> str:
    """Return `all_models` as a table for a page: dense and sparse seconds and the speed-up."""
    heads = " | ".join(f"{gpus} GPU{'s' * (gpus > 1)}" for gpus in GPUS)
    text = [
        f"Modelled for {rates.title}, never measured: dense -> sparse seconds of the denoising "
        "loop (speed-up). THE DENSITY OF OURS IS A GUESS from the embedded model: in [ ] the "
        "speed-up if it keeps as much as paper mode, and if as many keys per query as there.",
        "",
        f"| model | mode | {heads} |",
        "|---|---|" + "---|" * len(GPUS),
    ]
    cells: dict[tuple[str, str], dict[int, str]] = {}
    for row in all_models(rates):
        cells.setdefault((row.model, METHODS[row.method]), {})[row.gpus] = (
            f"{row.dense_seconds:,.0f} -> {row.sparse_seconds:,.0f} ({row.speed_up:.2f}x)"
            f"{_range(row)}"
        )
    for (model, mode), found in cells.items():
        row_text = " | ".join(found.get(gpus, "heads do not divide") for gpus in GPUS)
        text.append(f"| {model} | {mode} | {row_text} |")
    return "\n".join(text)


def against_paper(rates: Rates) -> str:
    """Return the paper's fourteen latencies beside the modelled ones, as a table for a page."""
    text = [
        f"Seconds on one {rates.title}, the paper's -> modelled:",
        "",
        "| model | dense | SVOO |",
        "|---|---|---|",
    ]
    for name, paper in latencies().items():
        found = estimate(whole_video(find_model(name)), rates, find_method("paper", name))
        pairs = (paper["dense"], found.dense_seconds), (paper["svoo"], found.sparse_seconds)
        cells = (f"{seen:,.0f} -> {told:,.0f} ({told / seen - 1:+.1%})" for seen, told in pairs)
        text.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def _range(found: Estimate) -> str:
    """Return the speed-ups that other densities would give, or nothing."""
    ups = sorted(other.speed_up for other in found.otherwise)
    return f" [{ups[0]:.2f}-{ups[-1]:.2f}x]" if ups else ""
