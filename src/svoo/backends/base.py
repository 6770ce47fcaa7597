"""What a backend is."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from svoo.core.plan import BlockPlan
from svoo.core.terms import FarTerms


class Attention(NamedTuple):
    """Output `[B, H, N, D]` in the inputs' dtype and, if asked for, the log-sum-exp of the logits
    `[B, H, N]`.

    The log-sum-exp is natural, of scaled logits, compensation terms included, in at least float32.
    """

    output: Tensor
    lse: Tensor | None


def why_no_far_terms(plan: BlockPlan) -> str | None:
    """Return the refusal of backends that run no far terms, None for other plans."""
    return "has no far terms" if isinstance(plan.terms, FarTerms) else None


class Backend(Protocol):
    """Runs a plan; knows nothing of budgets or video."""

    name: str

    def why_not(self, query: Tensor, plan: BlockPlan) -> str | None:
        """Return why this call cannot run here, or None if it can; never waits for the device."""

    @property
    def workspace_bytes(self) -> int:
        """Bytes of device memory kept between calls."""

    def run(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plan: BlockPlan,
        *,
        scale: float,
        return_lse: bool,
    ) -> Attention:
        """Attend from query `[B, H, N, D]` to key and value `[B, H, M, D]`, both in the original
        token order."""
