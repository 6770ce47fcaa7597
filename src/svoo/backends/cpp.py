"""Block-sparse attention on the CPU with our own C++ kernel, terms included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from svoo.backends.base import Attention, Workspace
from svoo.core.layout import dense_rows, empty_rows, plain
from svoo.core.plan import BlockPlan
from svoo.core.terms import FarTerms, Terms, compensated
from svoo.kernels.cpp import NEEDS, bindings, why_no_bfloat16_products, why_no_cpp

Products = Literal["float32", "bf16"]
PACKED_BYTES = 1 << 28  # that packed keys and values may take; a single head may take more


class CppBackend:
    """Runs any plan on the CPU, where a C++ compiler is installed.

    Products are made in the tokens' own dtype: in float32 for float32 tokens; for bfloat16 ones in
    bfloat16 where the processor multiplies them (AVX512_BF16), with sums in float32. Rows of the
    table: "cpp", and "cpp-bf16", which rounds float32 tokens and softmax weights to bfloat16 for
    their products and is never chosen by itself: a weighted value moves by up to 2^-9 of itself, a
    logit by up to 2^-8 sum |q k| * scale (some .4 % of the output on trained tokens).
    Float32 keys and values whose head size is a multiple of 32 are read where they are; others are
    copied into block order, heads in groups of up to 256 MB, which stays in the workspace. Beside
    that a call needs memory for the means of blocks, and a megabyte or two for each thread.
    """

    def __init__(self, products: Products = "float32") -> None:
        """Say in what float32 tokens are multiplied."""
        self.name = "cpp" if products == "float32" else "cpp-bf16"
        extra = ", AVX512_BF16" if products == "bf16" else ""
        self.needs = replace(NEEDS, tool=NEEDS.tool + extra)
        self.products = products

    def why_not(self, query: Tensor, plan: BlockPlan) -> str | None:
        """Return what the kernel needs and does not have."""
        if plan.keep.device != query.device:
            return f"needs a plan on {query.device}, got one on {plan.keep.device}"
        reason = self.needs.why_not(query, plan.terms) or why_no_cpp(query)
        return why_no_bfloat16_products() if not reason and self.products == "bf16" else reason

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
        """Attend in one kernel; threads share out the query blocks."""
        query, key, value = (dense_rows(tokens) for tokens in (query, key, value))
        output = empty_rows(query)
        lse = query.new_empty(query.shape[:3], dtype=torch.float32) if return_lse else None
        rounds = self.products == "bf16" or (
            query.dtype == torch.bfloat16 and why_no_bfloat16_products() is None
        )
        held = _plan_tensors(plan, query.dtype)
        pairs, padded = query.shape[0] * query.shape[1], bindings.padded_size(query.shape[3])
        packs_rows = rounds or query.dtype != torch.float32 or padded != query.shape[3]
        rows = plan.key_sizes.shape[2] + (key.shape[2] if packs_rows else 0)
        row_bytes = 8 * padded
        groups = list(_groups(pairs, rows * row_bytes))
        memory = _take(workspace, groups[0][1] * rows * row_bytes // 4)
        for first, count in groups:
            packed = memory[: count * rows * row_bytes // 4].view(2, -1)
            call = bindings.Attention(
                *(bindings.point_to(tokens) for tokens in (query, key, value, output)),
                *(_address(tensor) for tensor in (lse, *packed, *held)),
                *(query.shape[1], query.shape[2], key.shape[2], query.shape[3]),
                *(*plan.keep.shape[2:], _group_count(plan.terms)),
                *(first, count, rounds, packs_rows),
                scale,
            )
            if packs_rows or plan.terms is not None:
                bindings.run_kernel("pack", query.dtype, call)
            bindings.run_kernel("attend", query.dtype, call)
        workspace.leave("cpp", memory)
        return Attention(output, lse)


def _take(workspace: Workspace, numbers: int) -> Tensor:
    """Return memory for at least so many float32 numbers: what is left of the call before, because
    each page of new memory costs microseconds at its first touch."""
    left = workspace.take("cpp")
    if isinstance(left, Tensor) and left.numel() >= numbers:
        return left
    return torch.empty(numbers, dtype=torch.float32)


def _plan_tensors(plan: BlockPlan, dtype: torch.dtype) -> list[Tensor | None]:
    """Return a plan's tensors in the order of the structure, as the kernel reads them; the caller
    holds them as long as the call runs."""
    terms, groups = plan.terms, None
    middle = bias = far_value = None
    if isinstance(terms, FarTerms):
        middle, bias, far_value, groups = terms.middle, terms.bias, terms.value, terms.groups
    indices = (plan.query_order, plan.key_order, plan.query_sizes, plan.key_sizes)
    typed = (
        *((tensor, torch.int64) for tensor in indices),
        *((tensor, torch.bool) for tensor in (plan.keep, compensated(terms), middle)),
        *((bias, torch.float32), (far_value, dtype)),
        (groups.bias if groups else None, torch.float32),
        *((groups.key if groups else None, dtype), (groups.value if groups else None, dtype)),
    )
    return [None if tensor is None else plain(tensor.to(own)) for tensor, own in typed]


def _group_count(terms: Terms | None) -> int:
    if isinstance(terms, FarTerms) and terms.groups is not None:
        return terms.groups.bias.shape[3]
    return 0


def _groups(pairs: int, bytes_each: int) -> Iterator[tuple[int, int]]:
    """Yield first and number of the pairs of batch and head that go together."""
    together = max(1, PACKED_BYTES // bytes_each)
    for first in range(0, pairs, together):
        yield first, min(together, pairs - first)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
