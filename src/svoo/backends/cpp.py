"""Block-sparse attention on the CPU with our own C++ kernel, compensation included."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from svoo.backends.base import Attention, Workspace
from svoo.core.layout import dense_rows, empty_rows, plain
from svoo.core.plan import BlockPlan
from svoo.core.terms import MeanTerms, compensated
from svoo.kernels.cpp import NEEDS, bindings, why_no_cpp


class CppBackend:
    """Runs any plan on the CPU, where a C++ compiler is installed.

    Extra memory: the means of compensated blocks, and for each thread some hundred kilobytes and 8
    bytes a key.
    """

    name = "cpp"
    needs = replace(NEEDS, terms=(MeanTerms,))

    def why_not(self, query: Tensor, plan: BlockPlan) -> str | None:
        """Return what the kernel needs and does not have."""
        if plan.keep.device != query.device:
            return f"needs a plan on {query.device}, got one on {plan.keep.device}"
        return self.needs.why_not(query, plan.terms) or why_no_cpp(query)

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
        """Attend in one kernel that finds the tokens itself; threads share out the queries."""
        batch, heads, queries, size = query.shape
        query, key, value = (dense_rows(tokens) for tokens in (query, key, value))
        output = empty_rows(query)
        lse = query.new_empty(query.shape[:3], dtype=torch.float32) if return_lse else None
        means, marked = None, compensated(plan.terms)
        if marked is not None:
            means = query.new_empty(*plan.key_sizes.shape, 2 * size + 1, dtype=torch.float32)
        indices = [  # held here, because a copy has to live as long as the call
            None if tensor is None else plain(tensor.long())
            for tensor in (plan.query_order, plan.key_order, plan.query_sizes, plan.key_sizes)
        ]
        marks = [None if tensor is None else plain(tensor) for tensor in (plan.keep, marked)]
        call = bindings.Attention(
            *(bindings.point_to(tokens) for tokens in (query, key, value, output)),
            *(_address(tensor) for tensor in (lse, means, *indices, *marks)),
            *(batch, heads, queries, key.shape[2], size, *plan.keep.shape[2:]),
            scale,
        )
        if means is not None:
            bindings.run_kernel("average", query.dtype, call)
        bindings.run_kernel("attend", query.dtype, call)
        return Attention(output, lse)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
