"""What a backend is, and the memory that it may keep."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from svoo.core.needs import Needs
from svoo.core.plan import BlockPlan


class Attention(NamedTuple):
    """Output `[B, H, N, D]` in the inputs' dtype and, if asked for, the log-sum-exp of the logits
    `[B, H, N]`.

    The log-sum-exp is natural, of scaled logits, terms included, in at least float32.
    """

    output: Tensor
    lse: Tensor | None


class Held(Protocol):
    """Memory of a backend."""

    @property
    def nbytes(self) -> int:
        """Its size."""


class Workspace:
    """Memory that backends keep from one call to the next, because taking it anew costs time.

    It belongs to whoever makes it (a session, an applied pipeline) and goes when they `clear` it.
    A call takes what it uses out of it, so several may run at once.
    """

    def __init__(self) -> None:
        """Start with nothing."""
        self._held: dict[str, Held] = {}

    def take(self, name: str) -> Held | None:
        """Return what was left under a name, which is then the caller's alone, or None."""
        return self._held.pop(name, None)

    def leave(self, name: str, held: Held) -> None:
        """Keep memory under a name for the next call, instead of what was left there before."""
        self._held[name] = held

    def clear(self) -> None:
        """Let go of everything."""
        self._held.clear()

    @property
    def nbytes(self) -> int:
        """Bytes kept."""
        return sum(held.nbytes for held in tuple(self._held.values()))


class Backend(Protocol):
    """Runs a plan; knows nothing of budgets or video."""

    name: str
    needs: Needs

    def why_not(self, query: Tensor, plan: BlockPlan) -> str | None:
        """Return why this call cannot run here, or None if it can; never waits for the device."""

    def run(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plan: BlockPlan,
        *,
        scale: float,
        return_lse: bool,
        workspace: Workspace,
    ) -> Attention:
        """Attend from query `[B, H, N, D]` to key and value `[B, H, M, D]`, both in the original
        token order."""
