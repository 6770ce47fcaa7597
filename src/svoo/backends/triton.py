"""Block-sparse attention on a GPU with our own Triton kernels, terms included."""

from __future__ import annotations

from torch import Tensor

from svoo.backends.base import Attention, Workspace
from svoo.core.plan import BlockPlan
from svoo.kernels.triton import NEEDS


class TritonBackend:
    """Runs any plan on a CUDA device without waiting for it; Triton is imported at the first
    run."""

    name = "triton"
    needs = NEEDS

    def why_not(self, query: Tensor, plan: BlockPlan) -> str | None:
        """Return what the kernels need and do not have."""
        return self.needs.why_not(query, plan.terms)

    def run(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plan: BlockPlan,
        *,
        scale: float,
        return_lse: bool,
        workspace: Workspace,  # noqa: ARG002 (keeps nothing)
    ) -> Attention:
        """Attend in one kernel that gathers the tokens itself."""
        from svoo.kernels.triton.sparse import sparse_attention

        found = sparse_attention(query, key, value, plan, scale=scale, return_lse=return_lse)
        return Attention(*found)
