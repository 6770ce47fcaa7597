"""What each (step, layer) of a run does: stay dense, or be sparse with which budgets."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from svoo.errors import ProfileError
from svoo.methods.svoo.config import SVOOConfig


@dataclass(frozen=True)
class Dense:
    """The model's own attention, and why."""

    reason: str


@dataclass(frozen=True)
class Sparse:
    """Sparse attention that covers `mass`, with budgets `[heads]`; None: mass alone decides."""

    budgets: Tensor | None
    mass: float


@dataclass(frozen=True, eq=False)
class Schedule:
    """The plan of a run of `steps` steps: warm-up from the config, budgets `[steps, layers,
    heads]` or None."""

    config: SVOOConfig
    steps: int
    budgets: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse budgets made for another number of steps."""
        if self.budgets is not None and (
            self.budgets.ndim != 3 or self.budgets.shape[0] != self.steps
        ):
            raise ProfileError(
                f"budgets must be [steps, layers, heads] with {self.steps} steps, got "
                f"{list(self.budgets.shape)}; "
                "use Profile.at_sigmas to serve another number of steps"
            )

    def at(self, step: int, layer: int) -> Dense | Sparse:
        """Return what to do at a 0-based step and layer."""
        warm_up = self.config.count_dense_steps(self.steps)
        if step < warm_up:
            return Dense(f"warm-up: the first {warm_up} of {self.steps} steps are dense")
        if layer < self.config.dense_layers:
            return Dense(f"the first {self.config.dense_layers} layers are dense")
        open_part = self.config.dense_share(step, self.steps)
        mass = self.config.mass + open_part * (1 - self.config.mass)
        if self.budgets is None:
            return Sparse(None, mass)
        low, high = self.config.budget_range
        budgets = self.budgets[min(step, self.steps - 1), layer].clamp(low, high)
        return Sparse(budgets + open_part * (1 - budgets), mass)
