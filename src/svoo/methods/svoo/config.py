"""Settings of SVOO: frozen, checked when made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from svoo.catalogue import find_model
from svoo.core.selection import BudgetUnit
from svoo.errors import ConfigError
from svoo.methods.base import (
    Compensate,
    Method,
    MethodConfig,
    Run,
    require,
    require_choice,
    require_count,
    require_number,
    require_switch,
)
from svoo.methods.warm_up import count_dense_steps, fraction_of

FAST, TOLERANCE, CAREFUL = 0.018, 0.0128, 0.0064  # three values of the one knob
_START = 0.25  # of the tolerance, in the first steps


@dataclass(frozen=True, kw_only=True)
class SVOOConfig(MethodConfig):
    """How close to dense, how often reclustered, what stays dense. `SVOOConfig()` is default mode.

    **By tolerance**, default mode. `tolerance` is its one knob, one absolute number for every
    size and model: a block is computed token by token where the term that stands for it would
    err by more (None: 0.0128). Smaller is closer to dense. In the first part `careful_start` of
    the steps, which decide what the video will show, a quarter of it counts. Left-out key blocks
    fall into `groups` groups that share one term where that errs by less than the tolerance (0:
    none do). A call is dense, and the summary says why, where a layer's first call at a tolerance
    would compute more than the share `densest` of the pairs, or where its output is further than
    `worst_error` from the dense one; then the layer goes on with half the tolerance, and stays
    dense where a 64th of it is not enough; after the careful start it is tried again.

    **By mass**, as in the paper: give `mass`, the softmax probability that kept blocks must cover
    (the paper's tau). Budgets, the fractions that a profile measured, decide with it. A head whose
    budget is above `theta` keeps the smaller of what mass and budget ask for, any other head the
    larger. After the dense steps, mass and budgets fall from 1 to their own values over the
    fraction `ramp` of the steps. `budget_unit` says what a budget is a fraction of: "tokens" (of
    the keys), "clusters" (of the keys, rounded up: the paper) or "whole clusters" (rounded down:
    the authors' release). `budget_range` clips budgets before use.

    **Clusters.** `clustering` is "kmeans", "co" (the paper's co-clustering) or "balanced" (equal
    blocks of 128 queries and 64 keys, which fill a GPU's tiles), with `iterations` when it starts.
    Labels are made anew when they are `recluster_every` steps old. With `share_branches` both
    guidance branches use those of the first. `query_clusters` and `key_clusters` of None follow
    the number of tokens (256 and 1024 at 75,600, fewer below), times `fineness` (None: 3.5 up to
    7,488 tokens, falling to 1 at 75,600).
    """

    name: ClassVar[str] = "svoo"

    tolerance: float | None = None
    careful_start: float = 0.1
    groups: int = 8
    densest: float = 0.6
    worst_error: float = 0.2
    mass: float | None = None
    theta: float = 0.1
    dense_steps: int | float = 0
    ramp: float = 0.0
    dense_layers: int = 0
    recluster_every: int = 1
    query_clusters: int | None = None
    key_clusters: int | None = None
    fineness: float | None = None
    iterations: int = 2
    clustering: Literal["co", "kmeans", "balanced"] = "kmeans"
    share_branches: bool = True
    compensate: Compensate = "far"
    measure_error: bool = True
    budget_unit: BudgetUnit = "tokens"
    budget_range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        if self.mass is None:
            tolerance = TOLERANCE if self.tolerance is None else self.tolerance
            require_number("tolerance", tolerance, 0, 1e6)
            require_choice("compensate", self.compensate, ("far",))
            object.__setattr__(self, "tolerance", tolerance)
        else:
            require_number("mass", self.mass, 0, 1)
            require("mass", self.mass, "a number above 0", fits=self.mass > 0)
            alone = "None where mass decides"
            require("tolerance", self.tolerance, alone, fits=self.tolerance is None)
        require_count("groups", self.groups, 0)
        require_number("careful_start", self.careful_start, 0, 1)
        require_number("densest", self.densest, 0, 1)
        require_number("worst_error", self.worst_error, 0, 1e6)
        require_number("theta", self.theta, 0, 1)
        require_number("ramp", self.ramp, 0, 1)
        if self.fineness is not None:
            require_number("fineness", self.fineness, 0, 1e6)
            require("fineness", self.fineness, "a number above 0", fits=self.fineness > 0)
        require_count("recluster_every", self.recluster_every, 1)
        require_count("iterations", self.iterations, 1)
        for name, count in (("query", self.query_clusters), ("key", self.key_clusters)):
            if count is not None:
                require_count(f"{name}_clusters", count, 1)
        require_choice("clustering", self.clustering, ("co", "kmeans", "balanced"))
        require_choice("budget_unit", self.budget_unit, ("tokens", "clusters", "whole clusters"))
        require_switch("share_branches", self.share_branches)
        expected = "two numbers, 0 <= low <= high <= 1"
        pair = self.budget_range
        fits = isinstance(pair, tuple) and len(pair) == 2
        fits = fits and all(isinstance(end, int | float) for end in pair)
        require("budget_range", pair, expected, fits=fits and 0 <= pair[0] <= pair[1] <= 1)

    def start(self, run: Run) -> Method:
        """Return the method for a new video."""
        from svoo.methods.svoo.method import SVOOMethod  # it needs this module

        return SVOOMethod(self, run)

    def always_sparse(self) -> Self:
        """Return these settings without warm-up, ramp and careful start."""
        return replace(self, dense_steps=0, dense_layers=0, ramp=0.0, careful_start=0.0)

    @classmethod
    def for_model(cls, model: str) -> Self:
        """Return default mode, which is the same for every model."""
        find_model(model)  # refuses a name that is not there
        return cls()

    @classmethod
    def balanced(cls) -> Self:
        """Return default mode: the same as `SVOOConfig()`."""
        return cls()

    @classmethod
    def fast(cls) -> Self:
        """Return `balanced` with 1.4 times its tolerance: less work, further from dense."""
        return cls(tolerance=FAST)

    @classmethod
    def careful(cls) -> Self:
        """Return `balanced` with half its tolerance: more work, closer to dense."""
        return cls(tolerance=CAREFUL)

    @classmethod
    def mean_terms(cls, mass: float = 0.7) -> Self:
        """Return what was our default before the far field: co-clusters that cover a mass, and one
        mean term for each that is left out."""
        return cls(
            mass=mass,
            clustering="co",
            compensate="mean",
            fineness=2.0,
            dense_steps=0.2,
            dense_layers=1,
            recluster_every=2,
        )

    @classmethod
    def paper(cls, model: str | None = None) -> Self:
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
            clustering="co",
            measure_error=False,
            budget_unit="clusters",
        )

    @classmethod
    def release(cls, model: str) -> Self:
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
            clustering="co",
            measure_error=False,
            budget_unit="whole clusters",
            budget_range=numbers.budget_range,
        )

    def tolerance_at(self, step: int, steps: int) -> float:
        """Return the tolerance of a step: less at the start, and the same from there on."""
        assert self.tolerance is not None  # else mass decides
        return self.tolerance * (_START if step < fraction_of(steps, self.careful_start) else 1.0)

    def dense_share(self, step: int, steps: int) -> float:
        """Return how much of the way back to dense a step goes: 1 before the ramp, 0 after it."""
        ramp = fraction_of(steps, self.ramp)
        climbed = step - count_dense_steps(self, steps) + 1
        return min(1.0, max(0.0, 1 - climbed / (ramp + 1)))
