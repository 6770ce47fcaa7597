"""What a profile says: tables, comparison of two, and pictures."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from svoo.errors import ConfigError, ProfileError
from svoo.profiles.profile import Profile
from svoo.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class LayerRow:
    """One layer's density: over everything, and how it spreads over heads, inputs and steps."""

    layer: int
    mean: float
    least: float
    most: float
    over_heads: float
    over_inputs: float
    over_steps: float


@dataclass(frozen=True)
class Sampling:
    """Standard errors by sampling rows: of an entry and of a head's mean over steps, their mean
    and the largest."""

    entry: float
    worst_entry: float
    head: float
    worst_head: float


@dataclass(frozen=True)
class Spread:
    """Where density varies: standard deviations along one axis, averaged over the others.

    A stable, heterogeneous model has small ones over inputs and steps and large ones over heads
    and layers; `layers` is that of the layers' means. `sampling`, part of the others, is None if
    it is not known.
    """

    mean: float
    inputs: float
    steps: float
    heads: float
    layers: float
    sampling: Sampling | None


@dataclass(frozen=True)
class Comparison:
    """How two profiles of a model agree on the mean over inputs and steps, head by head."""

    correlation: float | None  # None: where all heads of a profile need the same there is none
    rank_correlation: float | None
    mean_difference: float
    mean_distance: float
    worst: list[tuple[int, int, float, float]]  # layer, head, first's density, second's


def layer_rows(profile: Profile, mass: float = 0.95) -> list[LayerRow]:
    """Return a row for every layer."""
    density = profile.at_mass(mass)
    rows = []
    for layer in range(profile.layers):
        here = density[:, :, layer]
        rows.append(
            LayerRow(
                layer,
                float(here.mean()),
                float(here.min()),
                float(here.max()),
                _spread(here, 2),
                _spread(here, 0),
                _spread(here, 1),
            )
        )
    return rows


def leave_out(profile: Profile, part: float) -> Profile:
    """Return a profile without the first part of its steps, where a run is dense anyway."""
    if not 0 <= part < 1:
        raise ConfigError(f"the part of the steps to leave out must be from 0 to below 1: {part}")
    first = round(part * len(profile.sigma))
    if first >= len(profile.sigma):
        raise ConfigError(f"{part} of {len(profile.sigma)} steps left out leaves none")
    return replace(
        profile,
        density=profile.density[:, first:],
        sigma=profile.sigma[first:],
        stage=profile.stage[first:],
        error=None if profile.error is None else profile.error[:, first:],
    )


def spread(profile: Profile, mass: float = 0.95) -> Spread:
    """Return where density varies."""
    density = profile.at_mass(mass)
    return Spread(
        float(density.mean()),
        _spread(density, 0),
        _spread(density, 1),
        _spread(density, 3),
        _spread(density.mean(dim=3), 2),
        _sampling(profile.error_at_mass(mass)),
    )


def _sampling(error: Tensor | None) -> Sampling | None:
    """Return the standard errors of entries `[inputs, steps, layers, heads]`."""
    if error is None:
        return None
    of_head = error.square().sum(dim=1).sqrt() / error.shape[1]
    return Sampling(*(float(value) for e in (error, of_head) for value in (e.mean(), e.max())))


def compare(first: Profile, second: Profile, mass: float = 0.95, worst: int = 5) -> Comparison:
    """Compare two profiles of the same shape; the second is brought to the first's noise
    levels."""
    second.check_fits(first.layers, first.heads)
    if not set(first.stage.tolist()) <= set(second.stage.tolist()):
        raise ProfileError("the profiles have different stages (experts): they cannot be compared")
    aligned = second.at_sigmas(first.sigma, first.stage)
    mine = first.at_mass(mass).mean(dim=(0, 1)).double().flatten()
    theirs = aligned.at_mass(mass).mean(dim=(0, 1)).double().flatten()
    distance = (mine - theirs).abs()
    furthest = distance.argsort(descending=True)[:worst].tolist()
    return Comparison(
        _correlation(mine, theirs),
        _correlation(_ranks(mine), _ranks(theirs)),
        float((mine - theirs).mean()),
        float(distance.mean()),
        [(*divmod(at, first.heads), float(mine[at]), float(theirs[at])) for at in furthest],
    )


def draw(profile: Profile, mass: float = 0.95, quantile: float = 0.95) -> Figure:
    """Draw the four pictures of a profile: heat map, stability over inputs, steps, budgets."""
    from matplotlib.figure import Figure

    density = profile.at_mass(mass)
    figure = Figure(figsize=(12, 8.5), layout="constrained")
    heat, inputs, steps, budget = figure.subplots(2, 2).flatten()
    _draw_map(figure, heat, density.mean(dim=(0, 1)), "required density, mean")
    _draw_inputs(inputs, density)
    _draw_steps(steps, profile, density)
    budgets = profile.budgets(mass, quantile).mean(dim=0)
    _draw_map(figure, budget, budgets, f"budget: {quantile:.0%} quantile over inputs, mean")
    name = profile.provenance.get("model", "a profile")
    figure.suptitle(f"{name}, mass {mass:g}, inputs: {profile.inputs}", parse_math=False)
    return figure


def _draw_map(figure: Figure, axes: Axes, table: Tensor, title: str) -> None:
    picture = axes.imshow(table.numpy(), aspect="auto", vmin=0, vmax=1, cmap="viridis")
    axes.set(title=title, xlabel="head", ylabel="layer")
    _tick_whole_numbers(axes.xaxis, axes.yaxis)
    figure.colorbar(picture, ax=axes)


def _tick_whole_numbers(*axes: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _draw_inputs(axes: Axes, density: Tensor) -> None:
    by_input = density.mean(dim=(1, 3))  # [inputs, layers]
    layers = range(by_input.shape[1])
    axes.fill_between(layers, by_input.amin(dim=0), by_input.amax(dim=0), alpha=0.3)
    axes.plot(layers, by_input.mean(dim=0), marker="o")
    title = "by layer, band over inputs" if len(density) > 1 else "by layer (one input: no band)"
    axes.set(title=title, xlabel="layer", ylabel="density", ylim=(0, 1))
    _tick_whole_numbers(axes.xaxis)


def _draw_steps(axes: Axes, profile: Profile, density: Tensor) -> None:
    chosen = sorted({round(part * (profile.layers - 1) / 4) for part in range(5)})
    for layer in chosen:
        line = density[:, :, layer].mean(dim=(0, 2))
        axes.plot(profile.sigma, line, marker=".", label=f"layer {layer}")
    axes.invert_xaxis()  # as a run goes: noise first
    title = "by noise level, a point a step"
    axes.set(title=title, xlabel="noise level", ylabel="density", ylim=(0, 1))
    axes.legend(fontsize="small")


def write_picture(profile: Profile, path: Path, mass: float = 0.95) -> None:
    """Write the pictures as a PNG, whole or not at all."""
    write_atomically(path, _as_png(profile, mass))


def write_page(profile: Profile, path: Path, mass: float = 0.95) -> None:
    """Write one self-contained HTML page with provenance, tables and pictures."""
    from jinja2 import Environment, PackageLoader, select_autoescape

    pages = Environment(loader=PackageLoader("svoo.app"), autoescape=select_autoescape())
    page = pages.get_template("profile.html").render(
        profile=profile,
        mass=mass,
        spread=spread(profile, mass),
        layers=layer_rows(profile, mass),
        picture=base64.b64encode(_as_png(profile, mass)).decode(),
    )
    write_atomically(path, page.encode())


def _as_png(profile: Profile, mass: float) -> bytes:
    picture = io.BytesIO()
    draw(profile, mass).savefig(picture, format="png", dpi=110)
    return picture.getvalue()


def _spread(density: Tensor, axis: int) -> float:
    return float(density.std(dim=axis, correction=0).mean())


def _correlation(first: Tensor, second: Tensor) -> float | None:
    found = float(torch.corrcoef(torch.stack([first, second]))[0, 1])
    return found if math.isfinite(found) else None


def _ranks(values: Tensor) -> Tensor:
    """Return ranks from 0, equal values sharing their mean."""
    _, which, count = values.unique(return_inverse=True, return_counts=True)
    ranks: Tensor = count.cumsum(dim=0) - (count + 1) / 2
    return ranks[which].double()
