"""Medians over prompts with bootstrap intervals, paired differences, and who is best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 10_000
LEAST_PROMPTS = 5  # fewer say too little for a verdict
_LEVEL = 0.95
_ENDLESS = 1e30  # stands for infinity, with which nobody can interpolate


@dataclass(frozen=True)
class Interval:
    """A median and its 95 % interval, from so many prompts."""

    median: float
    low: float
    high: float
    count: int

    @property
    def covers_zero(self) -> bool:
        """Whether zero is among the values that the figures allow; one prompt allows any."""
        return self.count < 2 or self.low <= 0 <= self.high


def interval(values: Sequence[float]) -> Interval | None:
    """Return the median with a percentile bootstrap interval; None if there are no values. What is
    no number is left out.

    The draws are the same every time. The PSNR of equal videos is infinite: it counts as more than
    any other.
    """
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return None
    drawn_from = np.clip(np.array(values, dtype=np.float64), -_ENDLESS, _ENDLESS)
    picked = np.random.default_rng(0).integers(len(values), size=(DRAWS, len(values)))
    medians = np.median(drawn_from[picked], axis=1)
    edge = (1 - _LEVEL) / 2
    low, high = np.quantile(medians, (edge, 1 - edge))
    middle, low, high = (_unclip(float(end)) for end in (np.median(drawn_from), low, high))
    return Interval(middle, low, high, len(values))


def _unclip(value: float) -> float:
    """Return infinity for what is a mean with it."""
    return math.copysign(math.inf, value) if abs(value) > _ENDLESS / 1e4 else value


def paired(first: Mapping[str, float], second: Mapping[str, float]) -> Interval | None:
    """Return first - second over the prompts that both have; None if there is none. What is
    infinite on both sides differs by nothing."""

    def subtract(name: str) -> float:
        return 0.0 if first[name] == second[name] else first[name] - second[name]

    return interval([subtract(name) for name in first if name in second])


def best_two(
    figures: Mapping[str, Mapping[str, float]], *, higher_is_better: bool
) -> tuple[list[str], list[str]]:
    """Return the names of the best and of the second best by median over prompts.

    Each comes with all that it does not beat: the paired difference covers zero, is of too few
    prompts, or has the other sign (the medians are of other prompts). No winner is named among
    these.
    """
    sign = 1 if higher_is_better else -1
    left = {
        name: sign * float(np.median(list(values.values())))
        for name, values in figures.items()
        if values
    }
    groups: list[list[str]] = []
    while left and len(groups) < 2:
        leader = max(left, key=lambda name: left[name])
        group = [
            name
            for name in left
            if name == leader or not _beats(figures[leader], figures[name], sign)
        ]
        groups.append(group)
        for name in group:
            del left[name]
    return groups[0] if groups else [], groups[1] if len(groups) > 1 else []


def _beats(first: Mapping[str, float], second: Mapping[str, float], sign: int) -> bool:
    difference = paired(first, second)
    if difference is None or difference.count < LEAST_PROMPTS:
        return False
    return min(sign * difference.low, sign * difference.high) > 0
