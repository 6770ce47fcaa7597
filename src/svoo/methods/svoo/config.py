"""Settings of the method: frozen, checked when made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from svoo.catalogue import find_model
from svoo.core.selection import BudgetUnit
from svoo.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SVOOConfig:
    """How sparse, how often reclustered, what stays dense.

    `mass` is the probability that kept blocks must cover (tau); heads whose budget is above
    `theta` keep the smaller of what mass and budget ask for, the others the larger. `dense_steps`
    counts steps (int) or is a fraction of them (float); after them, mass and budgets fall from 1
    to their own values over the fraction `ramp` of the steps; `dense_layers` are the first layers.
    Labels are remade when they are `recluster_every` steps old. A `clusters` count of None follows
    the number of tokens (256 / 1024 at 75,600), times `fineness`. `budget_unit` says what a budget
    is a fraction of: key tokens; key clusters, rounded up (the paper); key clusters, rounded down
    (the authors' release); `budget_range` clips budgets before use.
    """

    mass: float = 0.7
    theta: float = 0.1
    dense_steps: int | float = 0.2
    ramp: float = 0.0
    dense_layers: int = 1
    recluster_every: int = 2
    query_clusters: int | None = None
    key_clusters: int | None = None
    fineness: float = 2.0
    iterations: int = 2
    clustering: Literal["co", "kmeans"] = "co"
    share_branches: bool = True
    compensate: bool = True
    backend: str = "auto"
    seed: int = 0
    measure_recall: bool = False
    budget_unit: BudgetUnit = "tokens"
    budget_range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        for name in ("mass", "theta", "ramp", "fineness"):
            value = getattr(self, name)
            _require(name, value, "a number", isinstance(value, int | float))
        for name in ("share_branches", "compensate", "measure_recall"):
            value = getattr(self, name)
            _require(name, value, "True or False", isinstance(value, bool))
        _require("mass", self.mass, "a number in (0, 1]", 0 < self.mass <= 1)
        _require("theta", self.theta, "a number in [0, 1]", 0 <= self.theta <= 1)
        if isinstance(self.dense_steps, float):
            expected = "a fraction in [0, 1] (a float) or a count (an int)"
            _require("dense_steps", self.dense_steps, expected, 0 <= self.dense_steps <= 1)
        else:
            _require_count("dense_steps", self.dense_steps, 0)
        _require("ramp", self.ramp, "a fraction in [0, 1]", 0 <= self.ramp <= 1)
        _require_count("dense_layers", self.dense_layers, 0)
        _require("fineness", self.fineness, "a number above 0", 0 < self.fineness < math.inf)
        _require_count("recluster_every", self.recluster_every, 1)
        _require_count("iterations", self.iterations, 1)
        for name, count in (("query", self.query_clusters), ("key", self.key_clusters)):
            if count is not None:
                _require_count(f"{name}_clusters", count, 1)
        _require_choice("clustering", self.clustering, ("co", "kmeans"))
        _require_choice("budget_unit", self.budget_unit, ("tokens", "clusters", "whole clusters"))
        _require_count("seed", self.seed, 0)
        _require("backend", self.backend, "the name of a backend", isinstance(self.backend, str))
        expected = "two numbers, 0 <= low <= high <= 1"
        is_pair = isinstance(self.budget_range, tuple) and len(self.budget_range) == 2
        _require("budget_range", self.budget_range, expected, is_pair)
        low, high = self.budget_range
        _require("budget_range", self.budget_range, expected, 0 <= low <= high <= 1)

    @classmethod
    def for_model(cls, model: str) -> SVOOConfig:
        """Return our default mode with a model's warm-up and what was tuned on it."""
        known = find_model(model)
        settings: dict[str, Any] = {
            "dense_steps": known.warm_up,
            "dense_layers": known.dense_layers,
            **known.tuned,
        }
        return cls(**settings)

    @classmethod
    def paper(cls, model: str | None = None) -> SVOOConfig:
        """Return the paper's numbers and rules; a model sets its warm-up (0.2 if none is
        named)."""
        known = find_model(model) if model else None
        return cls(
            mass=0.9,
            fineness=1.0,
            dense_steps=known.warm_up if known else 0.2,
            dense_layers=known.dense_layers if known else 1,
            recluster_every=known.recluster_every if known else 20,
            compensate=False,
            budget_unit="clusters",
        )

    @classmethod
    def release(cls, model: str) -> SVOOConfig:
        """Return the numbers and the rule of the authors' released script for a model, without its
        faults."""
        numbers = find_model(model).release
        if numbers is None:
            raise ConfigError(
                f"the authors released no settings for {model!r}; use SVOOConfig.paper"
            )
        return cls(
            mass=numbers.mass,
            fineness=1.0,
            theta=1.0,  # no budget is above 1: always the union of the two sets
            dense_steps=numbers.dense_steps,
            dense_layers=numbers.dense_layers,
            recluster_every=numbers.recluster_every,
            compensate=False,
            budget_unit="whole clusters",
            budget_range=numbers.budget_range,
        )

    def count_dense_steps(self, steps: int) -> int:
        """Return how many of `steps` stay dense at the start."""
        if isinstance(self.dense_steps, float):
            return _fraction_of(steps, self.dense_steps)
        return min(self.dense_steps, steps)

    def dense_share(self, step: int, steps: int) -> float:
        """Return how much of the way back to dense a step goes: 1 before the ramp, 0 after it."""
        ramp = _fraction_of(steps, self.ramp)
        climbed = step - self.count_dense_steps(steps) + 1
        return min(1.0, max(0.0, 1 - climbed / (ramp + 1)))


def _fraction_of(steps: int, fraction: float) -> int:
    return math.ceil(fraction * steps - 1e-6)


def _require(name: str, value: object, expected: str, fits: bool) -> None:  # noqa: FBT001 (a check's verdict)
    if not fits:
        raise ConfigError(f"{name} must be {expected}, got {value!r}")


def _require_count(name: str, value: int, least: int) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    _require(name, value, f"a whole number >= {least}", whole and value >= least)


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    _require(name, value, f"one of {', '.join(choices)}", value in choices)
