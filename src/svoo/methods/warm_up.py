"""The warm-up that every method has: the first steps and the first layers stay dense."""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

from torch import Tensor

from svoo.catalogue import find_model
from svoo.core.plan import BlockPlan
from svoo.methods.base import Call, Corrected, Dense, MethodConfig, Run

Config = TypeVar("Config", bound=MethodConfig)


def fraction_of(steps: int, fraction: float) -> int:
    """Return a fraction of the steps, rounded up; a hair above a whole number is that number."""
    return math.ceil(fraction * steps - 1e-6)


def count_dense_steps(config: MethodConfig, steps: int) -> int:
    """Return how many of `steps` stay dense at the start."""
    if isinstance(config.dense_steps, float):
        return fraction_of(steps, config.dense_steps)
    return min(config.dense_steps, steps)


def warm_up(config: MethodConfig, steps: int, call: Call) -> Dense | None:
    """Return dense if a call belongs to the warm-up of a run of `steps` steps, else None."""
    dense_steps = count_dense_steps(config, steps)
    if call.step < dense_steps:
        reason = f"warm-up: the first {dense_steps} of {steps} steps are dense"
        return Dense(reason, planned=True)
    if call.layer < config.dense_layers:
        return Dense(f"the first {config.dense_layers} layers are dense", planned=True)
    return None


class SparseMethod(Generic[Config]):
    """One video of a method: dense in the warm-up, and after it what `choose` says."""

    def __init__(self, config: Config, run: Run) -> None:
        """Start with nothing remembered."""
        self.config = config
        self.run = run

    def plan(
        self, query: Tensor, key: Tensor, value: Tensor, call: Call
    ) -> BlockPlan | Corrected | Dense:
        """Return dense in the warm-up, else what `choose` returns."""
        self.check(call)
        dense = warm_up(self.config, self.run.steps, call)
        return self.choose(query, key, value, call) if dense is None else dense

    def check(self, call: Call) -> None:
        """Refuse what the method cannot serve, before the warm-up is spent."""

    def choose(
        self, query: Tensor, key: Tensor, value: Tensor, call: Call
    ) -> BlockPlan | Corrected | Dense:
        """Return the plan of a sparse call for query, key, value `[B, H, N, D]`."""
        raise NotImplementedError(f"{type(self).__name__} must say what it keeps")

    @property
    def state_bytes(self) -> int:
        """Bytes remembered between calls."""
        return 0


def sparse_videogen_warm_up(model: str) -> dict[str, Any]:
    """Return the warm-up of Sparse VideoGen's scripts (SVG1, SVG2, SVG-EAR) for a model: 10 of 50
    steps, image to video 14 of 40 (Wan), HunyuanVideo 5 of 50, and the first layer."""
    known = find_model(model)
    steps = 0.2
    if known.name.startswith("hunyuan"):
        steps = 0.1
    elif "i2v" in known.name:
        steps = 0.35
    return {"dense_steps": steps, "dense_layers": known.dense_layers}
