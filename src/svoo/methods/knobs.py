"""The one setting that makes a method keep more or less, and its value for a given density."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from svoo.methods.base import MethodConfig

_ROUNDS = 14
_NEAR = 0.01  # of the density asked for

Config = TypeVar("Config", bound=MethodConfig)


@dataclass(frozen=True)
class Knob:
    """A setting, and its values where a method keeps least and most. `geometric`: its useful
    values span orders of magnitude. `whole`: it is a whole number."""

    setting: str
    least: float
    most: float
    geometric: bool = False
    whole: bool = False

    def turn(self, config: Config, share: float) -> Config:
        """Return the config with the setting that far (0 .. 1) on its way from least to most."""
        if self.geometric:
            value = self.least ** (1 - share) * self.most**share
        else:
            value = self.least + share * (self.most - self.least)
        change: dict[str, Any] = {self.setting: round(value) if self.whole else value}
        return replace(config, **change)


@dataclass(frozen=True)
class Tuned:
    """A config and the density that was measured of it: the nearest that the knob reaches."""

    config: MethodConfig
    density: float


def tune(
    config: MethodConfig, knob: Knob, density: float, measure: Callable[[MethodConfig], float]
) -> Tuned:
    """Turn a knob until a density is met, by bisection; `measure` returns the density of a config,
    which must not fall on the way from least to most."""

    def at(share: float) -> Tuned:
        turned = knob.turn(config, share)
        return Tuned(turned, measure(turned))

    low, high = 0.0, 1.0
    found = [at(low), at(high)]
    for _ in range(_ROUNDS):
        best = min(found, key=lambda tuned: abs(tuned.density - density))
        within = found[0].density <= density <= found[1].density
        if not within or abs(best.density - density) <= _NEAR * density:
            break
        middle = (low + high) / 2
        found.append(at(middle))
        low, high = (middle, high) if found[-1].density < density else (low, middle)
    return min(found, key=lambda tuned: abs(tuned.density - density))
