"""What the command prints, as tables and sentences for a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, asdict
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from svoo.catalogue import SEAM_TESTED, models
from svoo.methods import available_methods
from svoo.methods.base import MethodConfig

if TYPE_CHECKING:
    from svoo.app.doctor import Finding
    from svoo.profiles.profile import Profile

_DEMO_COLUMNS = {
    "mode": ("mode", "{}"),
    "loop s": ("denoising_seconds", "{:.1f}"),
    "speed-up": ("speed_up", "{:.2f}x"),
    "in all s": ("total_seconds", "{:.1f}"),
    "density": ("density", "{:.3f}"),
    "recall": ("recall", "{:.3f}"),
    "PSNR": ("psnr", "{:.1f}"),
    "SSIM": ("ssim", "{:.4f}"),
    "LPIPS": ("lpips", "{:.4f}"),
}

FEW_HEADS = 8  # so many fit in a line


def demo_table(prompt: str, rows: Iterable[dict[str, Any]]) -> Table:
    """Return the figures of every mode of a demo."""
    table = Table(title=escape(prompt), box=SIMPLE, padding=0)
    for name in _DEMO_COLUMNS:
        table.add_column(name, justify="right")
    for row in rows:
        cells = ((row[key], form) for key, form in _DEMO_COLUMNS.values())
        table.add_row(*("-" if figure is None else form.format(figure) for figure, form in cells))
    return table


def profile_tables(profile: Profile, mass: float | None = None) -> tuple[Table, str, Table]:
    """Return what the layers of a profile need at a mass (the last one if None), how that spreads,
    and where it is from."""
    from svoo.app.inspection import layer_rows, spread

    mass = float(profile.masses[-1]) if mass is None else mass
    facts = Table(title="provenance", show_header=False)
    for name, fact in sorted(profile.provenance.items()):
        facts.add_row(escape(name), escape(fact))
    layers = Table(title=f"required density at mass {mass:g}, {profile.inputs} inputs")
    for name in ("layer", "mean", "min", "max", "std: heads", "inputs", "steps"):
        layers.add_column(name, justify="right")
    heads = profile.at_mass(mass).mean(dim=(0, 1)) if profile.heads <= FEW_HEADS else None
    if heads is not None:
        layers.add_column("its heads")
    for row in layer_rows(profile, mass):
        layer, *figures = vars(row).values()
        means = [] if heads is None else ["  ".join(f"{mean:.3f}" for mean in heads[row.layer])]
        layers.add_row(str(layer), *(f"{figure:.3f}" for figure in figures), *means)
    found = spread(profile, mass)
    sentence = (
        f"mean {found.mean:.3f}; standard deviation over inputs {found.inputs:.3f}, steps "
        f"{found.steps:.3f}, heads {found.heads:.3f}, layers {found.layers:.3f}; standard error "
    )
    if found.sampling is None:
        return layers, sentence + "unknown", facts
    sentence += (
        "of an entry {entry:.4f} (at most {worst_entry:.4f}), of a head's mean over steps "
        "{head:.4f} (at most {worst_head:.4f})"
    ).format(**vars(found.sampling))
    return layers, sentence, facts


def profile_data(profile: Profile, mass: float | None = None) -> dict[str, Any]:
    """Return what `profile_tables` shows as plain data."""
    from svoo.app.inspection import layer_rows, spread

    mass = float(profile.masses[-1]) if mass is None else mass
    return {
        "mass": mass,
        "inputs": profile.inputs,
        "spread": asdict(spread(profile, mass)),
        "layers": [asdict(row) for row in layer_rows(profile, mass)],
        "provenance": dict(profile.provenance),
    }


def comparison_tables(first: Profile, second: Profile, mass: float) -> tuple[str, Table]:
    """Return how two profiles differ on the whole, and the heads furthest apart."""
    from svoo.app.inspection import compare

    found = compare(first, second, mass)
    both = found.correlation, found.rank_correlation
    straight, of_ranks = ("undefined" if value is None else f"{value:.3f}" for value in both)
    sentence = (
        f"heads' means at mass {mass:g}: correlation {straight}, of ranks {of_ranks}; first less "
        f"second {found.mean_difference:+.3f} on average, {found.mean_distance:.3f} apart"
    )
    table = Table("layer", "head", "first", "second", title="the heads furthest apart")
    for layer, head, mine, theirs in found.worst:
        table.add_row(str(layer), str(head), f"{mine:.3f}", f"{theirs:.3f}")
    return sentence, table


def doctor_table(findings: Iterable[Finding]) -> Table:
    """Return what can run here, and why not where it cannot."""
    table = Table("", "", "", title="svoo doctor", show_header=False)
    for finding in findings:
        verdict = "[green]yes[/]" if finding.good else "[yellow]no[/]"
        table.add_row(verdict, finding.name, escape(finding.text))
    return table


def model_lines() -> list[str]:
    """Return the models of the catalogue and how each was tested, as lines; nothing is cut."""
    lines = [_model_line("name", "layers x heads", "steps", "hub id")]
    for model in models():
        experts = " (x 2)" if model.stages == 2 else ""
        size = f"{model.layers} x {model.heads}{experts}"
        lines.append(_model_line(model.name, size, str(model.steps), model.hub_id))
    lines += [
        "",
        "x 2: two experts. mini, the embedded model, is tested with its trained weights,",
        "the others with tiny random ones. Tested in that way too, without a preset:",
    ]
    return [*lines, *(f"{name:16s}  {pipeline}" for name, pipeline in SEAM_TESTED.items())]


def _model_line(name: str, size: str, steps: str, hub_id: str) -> str:
    return f"{name:16s}  {size:14s}  {steps:>5s}  {hub_id}"


def method_lines(model: str) -> list[str]:
    """Return every method with its settings for a model of the catalogue, as lines that fit a
    terminal; settings that all methods have are shown where they are not the usual."""
    lines = [f"settings for {model}", ""]
    for row in available_methods():
        settings = row.config.for_model(model)
        usual = MethodConfig()
        chosen = {
            name: value
            for name, value in settings.as_dict().items()
            if name != "method" and value != getattr(usual, name, MISSING)
        }
        trained = " Its authors train the model with it; here without." if row.trained else ""
        facts = [
            f"{row.paper or 'the model as it is'}.{trained}",
            f"Keeps {row.keeps}; the rest: {row.rest}.",
            ", ".join(f"{name}={value!r}" for name, value in chosen.items()),
        ]
        lines.append(row.name)
        for fact in facts:
            lines += wrap(fact, 80, initial_indent="  ", subsequent_indent="    ")
    return lines
