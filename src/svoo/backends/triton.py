"""Block-sparse attention on a GPU with our own Triton kernels, terms included."""

from __future__ import annotations

from torch import Tensor

from svoo.backends.base import Attention
from svoo.core.plan import BlockPlan
from svoo.kernels.triton import why_no_kernels


class TritonBackend:
    """Runs any plan on a CUDA device without waiting for it; Triton is imported at the first
    run."""

    name = "triton"
    workspace_bytes = 0

    def why_not(self, query: Tensor, plan: BlockPlan) -> str | None:  # noqa: ARG002 (any plan)
        """Return what the kernels need and do not have."""
        return why_no_kernels(query)

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
        """Attend in one kernel that gathers the tokens itself."""
        from svoo.kernels.triton.sparse import sparse_attention

        output, lse = sparse_attention(
            query,
            key,
            value,
            query_order=plan.query_order,
            key_order=plan.key_order,
            query_sizes=plan.query_sizes,
            key_sizes=plan.key_sizes,
            keep=plan.keep,
            terms=plan.terms,
            scale=scale,
            return_lse=return_lse,
        )
        return Attention(output, lse)
