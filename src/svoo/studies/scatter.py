"""The picture of a table: PSNR against speed-up, with names that do not lie on each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from svoo.studies.comparisons import PSNR, SPEED_UP, Entry, by_prompt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINE = 8.0  # typographic points from one line of small text to the next
_SHOWN = 50.0  # dB: what is closer to dense would leave no room for the others


def points(entries: Sequence[Entry]) -> dict[str, tuple[float, float]]:
    """Return median speed-up and PSNR of each setting that has both, as a table has them: each
    over all prompts that have it."""
    quality, faster = by_prompt(entries, PSNR), by_prompt(entries, SPEED_UP)
    return {
        name: (
            float(np.median(list(faster[name].values()))),
            float(np.median(list(values.values()))),
        )
        for name, values in quality.items()
        if faster.get(name)
    }


def scatter(axes: Axes, entries: Sequence[Entry], label: str | None = None) -> None:
    """Draw the median PSNR of each setting against its speed-up."""
    shown = {
        name if height <= _SHOWN else f"{name} ({height:.0f} dB)": (faster, min(height, _SHOWN))
        for name, (faster, height) in points(entries).items()
        if math.isfinite(height)
    }
    axes.margins(x=0.12, y=0.1)
    for point in shown.values():
        axes.scatter(*point, s=22)
    for name, lift in _lifts(shown).items():
        axes.annotate(name, shown[name], (4, 3 + lift), textcoords="offset points", fontsize=7)
    axes.set(xlabel="speed-up of the denoising loop", ylabel="PSNR against dense, dB")
    axes.grid(visible=True, alpha=0.3)
    if label:
        axes.set_title(label, fontsize=9)


def _lifts(places: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return by how many typographic points each name is lifted so that no two lie on each other
    in a picture of about 400 x 250 points."""
    if not places:
        return {}
    extent = np.maximum(np.ptp(np.array(list(places.values())), axis=0) * 1.24, 1e-9)
    lifts: dict[str, float] = {}
    taken: list[tuple[float, float, float]] = []  # left, right, bottom
    for name in sorted(places, key=lambda name: places[name][1]):
        left, bottom = np.array(places[name]) / extent * (400, 250)
        right, lift = left + 4.2 * len(name), 0.0
        while any(
            left < other[1] and other[0] < right and abs(bottom + lift - other[2]) < _LINE
            for other in taken
        ):
            lift += 1.0
        taken.append((left, right, bottom + lift))
        lifts[name] = lift
    return lifts
