"""The method that is not one: every call dense, to compare with."""

from __future__ import annotations

from torch import Tensor

from svoo.methods.base import Call
from svoo.methods.schedule import Dense


class DenseMethod:
    """Leaves every call to the model's own attention."""

    name = "dense"
    state_bytes = 0

    def plan(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Dense:  # noqa: ARG002 (never looks)
        """Return dense."""
        return Dense("the method is dense")

    def reset(self) -> None:
        """Do nothing: it remembers nothing."""
