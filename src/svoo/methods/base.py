"""What a sparse-attention method is, and what it is told of a call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from svoo.core.layout import VideoLayout
from svoo.core.plan import BlockPlan
from svoo.methods.schedule import Dense

Watch = Callable[[str], AbstractContextManager[None]]
"""Times a phase of a call ("clustering", "selection") by its name."""


def unwatched(_phase: str) -> AbstractContextManager[None]:
    """Time nothing."""
    return nullcontext()


@dataclass(frozen=True)
class Call:
    """Where in a run an attention call stands."""

    step: int
    layer: int
    layout: VideoLayout
    stage: int = 0
    branch: str = "cond"
    sample: int = 0
    head_offset: int = 0
    scale: float | None = None
    watch: Watch = unwatched


class Method(Protocol):
    """Looks at a call and says which blocks to compute, or that it should be dense."""

    name: str

    def plan(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan | Dense:
        """Return a plan for query `[B, H, N, D]` and key, value `[B, H, M, D]`, or dense with the
        reason."""

    def reset(self) -> None:
        """Forget everything about earlier calls: a new video begins."""

    @property
    def state_bytes(self) -> int:
        """Bytes remembered between calls."""
