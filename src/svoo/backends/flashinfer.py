"""Block-sparse attention with FlashInfer's variable-block kernels, as the paper runs it.

Behind Triton in the order of preference: its planning waits for the device, copies one number for
every kept key token of every query block to the host, and wants permuted copies of the tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import metadata
from typing import Any, NamedTuple

import torch
from torch import Tensor

from svoo.backends.base import Attention, Workspace
from svoo.core.needs import Needs, Package
from svoo.core.plan import BlockPlan
from svoo.core.terms import FarTerms, MeanTerms
from svoo.kernels.triton import NEEDS, why_no_kernels

_WORKSPACE_BYTES = 128 << 20  # as its documentation advises
_PIECE = 64  # query tokens that share the terms of their block in one product
_LARGEST_CHUNK = 1 << 24  # numbers of terms' values held at a time
_LOWEST = -3.0e38  # minus infinity would make NaN of a row without terms
_MOST_ROWS = 32_768  # query blocks in one plan: FlashInfer 0.6 has a buffer of that length
_LONGEST_LIST = 1 << 25  # kept key tokens in one plan; each takes some 40 bytes while planning


class FlashInferBackend:
    """Runs plans of bfloat16 and float16 tokens on a CUDA device; terms come from our Triton
    kernel (far terms, where it cannot run, from torch) and are merged in."""

    name = "flashinfer"

    needs = Needs(
        device="cuda",
        dtypes=(torch.bfloat16, torch.float16),
        head_sizes=(64, 128, 256),
        package=Package(
            "flashinfer", "flashinfer-python", "pip install flashinfer-python", ("0.6", "0.7")
        ),
        tool="nvcc or flashinfer-jit-cache",
        for_terms=replace(NEEDS, terms=(MeanTerms,)),
    )

    def why_not(self, query: Tensor, plan: BlockPlan) -> str | None:
        """Return what is missing, or what FlashInfer has no kernel for."""
        return self.needs.why_not(query, plan.terms) or why_no_build()

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
        """Plan and run as many heads at a time as the index lists allow; batch counts as heads."""
        queries, keys, values = (
            tokens.flatten(0, 1)
            for tokens in (
                plan.permute_queries(query),
                plan.permute_keys(key),
                plan.permute_keys(value),
            )
        )
        blocks = _without_empty_blocks(plan, query.shape[2], key.shape[2])
        outputs, lses = [], []
        # Its `plan` waits for the current device only, and copies on that one's stream.
        with torch.cuda.device_of(query):
            held = _take_wrapper(query.device, workspace)
            wrapper = held.wrapper
            for part in _parts(blocks):
                count = part.stop - part.start
                wrapper.plan(
                    blocks.keep[part],
                    blocks.query_sizes[part],
                    blocks.key_sizes[part],
                    num_qo_heads=count,
                    num_kv_heads=count,
                    head_dim=query.shape[3],
                    sm_scale=scale,
                    q_data_type=query.dtype,
                    kv_data_type=query.dtype,
                )
                output, lse = wrapper.run(queries[part], keys[part], values[part], return_lse=True)
                outputs.append(output)
                lses.append(lse * math.log(2))  # theirs is binary
        workspace.leave(_name(query.device), held)
        output = plan.restore_queries(torch.cat(outputs).view(query.shape))
        lse = plan.restore_queries(torch.cat(lses).view(query.shape[:3]))
        if isinstance(plan.terms, FarTerms) and why_no_kernels(query) is not None:
            output, lse = _merge(output, lse, *_far_part(query, key, plan, plan.terms, scale))
        elif plan.terms is not None:
            output, lse = _merge(output, lse, *_kernel_part(query, key, value, plan, scale))
        return Attention(output, lse if return_lse else None)


@cache
def why_no_build() -> str | None:
    """Return why FlashInfer could not build its kernels, which it does at first use, or None."""
    try:
        metadata.version("flashinfer-jit-cache")  # kernels that are built already
    except metadata.PackageNotFoundError:
        from torch.utils.cpp_extension import CUDA_HOME  # looks where FlashInfer does

        if CUDA_HOME is None:
            return (
                "builds its kernels with nvcc at first use, which is not there: install the CUDA "
                "toolkit, or flashinfer-jit-cache"
            )
    return None


class _Held(NamedTuple):
    """FlashInfer's wrapper with the memory that it was given."""

    wrapper: Any  # flashinfer has no types
    nbytes: int


def _name(device: torch.device) -> str:
    return f"flashinfer on {device}"


def _take_wrapper(device: torch.device, workspace: Workspace) -> _Held:
    """Return the wrapper that the last call on this device left, or a new one."""
    held = workspace.take(_name(device))
    if isinstance(held, _Held):
        return held
    import flashinfer

    memory = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    return _Held(flashinfer.VariableBlockSparseAttentionWrapper(memory), _WORKSPACE_BYTES)


class _Blocks(NamedTuple):
    """A plan's blocks with batch folded into heads (P pairs): sizes int32 `[P, C]`, none of them
    0, and keep `[P, Cq, Ck]`."""

    query_sizes: Tensor
    key_sizes: Tensor
    keep: Tensor


def _without_empty_blocks(plan: BlockPlan, queries: int, keys: int) -> _Blocks:
    """Drop empty blocks, which FlashInfer does not test."""
    query_sizes, rows = _drop_empty(plan.query_sizes.flatten(0, 1), queries)
    key_sizes, columns = _drop_empty(plan.key_sizes.flatten(0, 1), keys)
    keep = plan.keep.flatten(0, 1)
    keep = keep.gather(1, rows.unsqueeze(-1).expand(-1, -1, keep.shape[2]))
    keep = keep.gather(2, columns.unsqueeze(1).expand(-1, keep.shape[1], -1))
    return _Blocks(query_sizes.int(), key_sizes.int(), keep)


def _drop_empty(sizes: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Return sizes `[P, C']` without zeros, and the block that each one comes from.

    Heads must have equally many, so single tokens are split off the blocks of those that have
    fewer: the pairs that a plan computes stay the same.
    """
    positions = torch.arange(tokens, device=sizes.device).expand(len(sizes), tokens).contiguous()
    block = torch.searchsorted(sizes.cumsum(dim=-1), positions, right=True)
    is_last = torch.ones_like(block, dtype=torch.bool)
    is_last[:, :-1] = block[:, :-1] != block[:, 1:]
    found = is_last.sum(dim=-1, keepdim=True)
    is_last |= (~is_last).cumsum(dim=-1) <= found.max() - found
    last = is_last.nonzero()[:, 1].view(len(sizes), -1)
    before = torch.full_like(last[:, :1], -1)
    return last.diff(dim=-1, prepend=before), block.gather(1, last)


def _parts(blocks: _Blocks) -> Iterator[slice]:
    """Give runs of heads whose query blocks and lists of kept key tokens stay within bounds
    together."""
    # One head at a time: whole numbers are added, because no device multiplies them.
    lengths = [
        int(torch.where(keep, sizes, 0).sum())
        for keep, sizes in zip(blocks.keep, blocks.key_sizes, strict=True)
    ]
    most = max(1, _MOST_ROWS // blocks.keep.shape[1])
    start = length = 0
    for head, more in enumerate(lengths):
        if head - start == most or (head > start and length + more > _LONGEST_LIST):
            yield slice(start, head)
            start, length = head, 0
        length += more
    yield slice(start, len(lengths))


def _merge(output: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Return two softmaxes over different keys as one: outputs `[B, H, N, D]` and their
    log-sum-exps `[B, H, N]`."""
    total = torch.logaddexp(lse, more_lse)
    share, more_share = ((part - total).exp().unsqueeze(-1) for part in (lse, more_lse))
    return (share * output + more_share * more).to(output.dtype), total


def _kernel_part(
    query: Tensor, key: Tensor, value: Tensor, plan: BlockPlan, scale: float
) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp of the terms alone, from our kernel."""
    from svoo.kernels.triton.sparse import sparse_attention

    output, lse = sparse_attention(
        query, key, value, plan, scale=scale, return_lse=True, only_terms=True
    )
    assert lse is not None  # asked for
    return output, lse


def _far_part(
    query: Tensor, key: Tensor, plan: BlockPlan, terms: FarTerms, scale: float
) -> tuple[Tensor, Tensor]:
    """Return output (float32) and log-sum-exp of the far terms alone; a row without any has 0 and
    minus infinity."""
    queries, key_blocks = plan.permute_queries(query), plan.key_blocks()
    enters = terms.enters(plan.key_sizes)
    output = torch.empty(query.shape, dtype=torch.float32, device=query.device)
    lse = output.new_empty(query.shape[:3])
    for b, h in itertools.product(*map(range, query.shape[:2])):
        sums = output.new_zeros(plan.key_sizes.shape[2], query.shape[3])
        sums.index_add_(0, key_blocks[b, h], key[b, h].float())
        means = sums / plan.key_sizes[b, h].clamp(min=1).unsqueeze(-1)
        means = means.to(key.dtype).float()
        parts = [_Rows(enters[b, h], terms.bias[b, h], means, terms.value[b, h])]
        if terms.groups is not None:
            bias, keys, values = (
                part[b, h] for part in (terms.groups.bias, terms.groups.key, terms.groups.value)
            )
            parts.append(_Rows(bias != -torch.inf, bias, keys, values))
        output[b, h], lse[b, h] = _attend_terms(
            queries[b, h], plan.query_sizes[b, h], parts, scale
        )
    return plan.restore_queries(output), plan.restore_queries(lse)


class _Rows(NamedTuple):
    """Terms of one head: marks and bias `[Cq, T]`, keys `[T, D]` (the same for all query blocks)
    or `[Cq, T, D]`, values `[Cq, T, D]`."""

    marks: Tensor
    bias: Tensor
    key: Tensor
    value: Tensor


def _attend_terms(
    query: Tensor, sizes: Tensor, parts: list[_Rows], scale: float
) -> tuple[Tensor, Tensor]:
    """Attend from query `[N, D]`, in block order with block `sizes` `[Cq]`, to its block's terms.

    Query blocks are cut into pieces of equal length, so that products come in batches and nothing
    waits for the device.
    """
    tokens, size = query.shape
    numbers = (sizes + _PIECE - 1) // _PIECE
    ends, steps = numbers.cumsum(dim=0), torch.arange(_PIECE, device=query.device)
    pieces = torch.arange(tokens // _PIECE + len(sizes), device=query.device)
    output = torch.zeros(tokens + 1, size, device=query.device)  # one row for what is no token
    lse = torch.full((tokens + 1,), -torch.inf, device=query.device)
    widest = max(part.bias.shape[1] for part in parts)
    for piece in pieces.split(max(1, _LARGEST_CHUNK // (widest * size))):
        block = torch.searchsorted(ends, piece, right=True).clamp(max=len(sizes) - 1)
        inside = (piece - ends[block] + numbers[block]).unsqueeze(-1) * _PIECE + steps
        rows = (sizes.cumsum(dim=0) - sizes)[block].unsqueeze(-1) + inside
        rows = torch.where(inside < sizes[block].unsqueeze(-1), rows, tokens)
        asking = query[rows.clamp(max=tokens - 1)].float()
        logits, values = [], []
        for part in parts:
            marks, bias = part.marks[block], part.bias[block].unsqueeze(1)
            key, value = (
                torch.where(marks.unsqueeze(-1), side.float(), 0)
                for side in (
                    part.key if part.key.ndim == 2 else part.key[block],
                    part.value[block],
                )
            )
            products = asking @ key.mT * scale + bias
            logits.append(products.masked_fill(~marks.unsqueeze(1), -torch.inf))
            values.append(value)
        joined = torch.cat(logits, dim=-1)
        total = joined.logsumexp(dim=-1)
        weights = (joined - total.clamp(min=_LOWEST).unsqueeze(-1)).exp()
        output[rows], lse[rows] = weights @ torch.cat(values, dim=1), total
    return output[:tokens], lse[:tokens]
