"""Attention probabilities summed over blocks of tokens: where attention falls, exactly."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from svoo.core.validate import accumulation_dtype
from svoo.errors import BackendUnavailableError
from svoo.kernels.cpp import block_sums as cpp
from svoo.kernels.cpp import why_no_cpp

Implementation = Literal["auto", "cpp", "torch"]

_CHUNK = 1 << 21  # probabilities held at a time


def probability_sums(
    query: Tensor,
    key: Tensor,
    block: int,
    scale: float,
    *,
    implementation: Implementation = "auto",
) -> Tensor:
    """Return the attention probability from query `[B, H, N, D]` to key `[B, H, M, D]` summed over
    blocks of tokens in their order, `[B, H, Cq, Ck]`.

    `implementation`: "cpp" runs on the CPU, "torch" anywhere; "auto" takes the first that can.
    """
    obstacle = why_no_cpp(query) if implementation in ("auto", "cpp") else "not asked for"
    if implementation == "cpp" and obstacle is not None:
        raise BackendUnavailableError(f"sums over blocks cannot run here:\n  cpp: {obstacle}")
    if obstacle is None:
        return cpp.sum_blocks(query, key, block, scale)
    return _by_rows(query, key, block, scale)


def _by_rows(query: Tensor, key: Tensor, block: int, scale: float) -> Tensor:
    """Rows go in chunks, through one buffer."""
    dtype = accumulation_dtype(query)
    tokens, keys = query.shape[2], key.shape[2]
    rows_at_a_time = min(tokens, max(1, _CHUNK // (keys * block)) * block)
    room = query.new_empty(rows_at_a_time, keys, dtype=dtype)
    sums = []
    for rows, columns in zip(query.flatten(0, 1), key.flatten(0, 1), strict=True):
        scaled, transposed = rows.to(dtype) * scale, columns.to(dtype).mT.contiguous()
        for part in scaled.split(rows_at_a_time):
            weights = torch.mm(part, transposed, out=room[: len(part)])
            torch.softmax(weights, dim=-1, out=weights)
            by_block = torch.stack([own.sum(dim=0) for own in weights.split(block)])
            sums.append(_sum_blocks(by_block, block))
    shape = *query.shape[:2], -(-tokens // block), -(-keys // block)
    return torch.cat(sums).view(shape)


def _sum_blocks(values: Tensor, block: int) -> Tensor:
    """Return sums over blocks of the last axis of `[n, m]`, the last block ragged: `[n, C]`."""
    whole = values.shape[-1] // block
    sums = values[:, : whole * block].reshape(len(values), whole, block).sum(dim=-1)
    rest = values[:, whole * block :]
    if rest.shape[-1] == 0:
        return sums
    return torch.cat((sums, rest.sum(dim=-1, keepdim=True)), dim=-1)
