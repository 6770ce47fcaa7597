"""The method that is not one: every call dense, to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from svoo.methods.base import Call, Dense, Method, MethodConfig, Run


@dataclass(frozen=True, kw_only=True)
class DenseConfig(MethodConfig):
    """Leaves every call to the model's own attention, and keeps the statistics."""

    name: ClassVar[str] = "dense"

    def start(self, run: Run) -> Method:  # noqa: ARG002 (never looks)
        """Return the method for a new video."""
        return _DenseMethod()


class _DenseMethod:
    state_bytes = 0

    def plan(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Dense:  # noqa: ARG002
        return Dense("the method is dense", planned=True)
