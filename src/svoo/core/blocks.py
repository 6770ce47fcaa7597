"""Fixed blocks of consecutive tokens, the last one ragged: sizes, means, and plans of them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from svoo.core.plan import BlockPlan
from svoo.core.terms import Terms
from svoo.core.validate import accumulation_dtype


def block_sizes(tokens: int, block: int, device: torch.device) -> Tensor:
    """Return the sizes of the blocks, int64 `[C]`: all `block`, but perhaps the last."""
    starts = torch.arange(0, tokens, block, device=device)
    return (tokens - starts).clamp(max=block)


def block_sums(tokens: Tensor, block: int) -> Tensor:
    """Return the sum of each block of tokens `[B, H, N, D]`: `[B, H, C, D]` in at least float32.

    Only sums of a view are taken: tokens are not copied.
    """
    dtype = accumulation_dtype(tokens)
    whole = tokens.shape[2] // block * block
    full, rest = tokens.split((whole, tokens.shape[2] - whole), dim=2)
    sums: Tensor | None = None
    if whole:
        sums = full.unflatten(2, (-1, block)).sum(dim=3, dtype=dtype)
    if not rest.shape[2]:
        assert sums is not None  # there is at least one token
        return sums
    last = rest.sum(dim=2, keepdim=True, dtype=dtype)
    return last if sums is None else torch.cat((sums, last), dim=2)


def block_means(tokens: Tensor, block: int) -> Tensor:
    """Return the mean of each block of tokens `[B, H, N, D]`: `[B, H, C, D]` in at least
    float32."""
    sums = block_sums(tokens, block)
    return sums / block_sizes(tokens.shape[2], block, tokens.device).unsqueeze(-1)


def split_blocks(tokens: Tensor, block: int) -> Tensor:
    """Return tokens `[B, H, N, D]` as `[B, H, C, block, D]`, the last block filled up with
    zeros."""
    missing = -tokens.shape[2] % block
    whole = pad(tokens, (0, 0, 0, missing)) if missing else tokens
    blocks: Tensor = whole.unflatten(2, (-1, block))
    return blocks


def plan_blocks(
    keep: Tensor,
    tokens: tuple[int, int],
    blocks: tuple[int, int],
    *,
    order: Tensor | None = None,
    terms: Terms | None = None,
) -> BlockPlan:
    """Return the plan that keeps `[B, H, Cq, Ck]` of (query, key) tokens in fixed blocks.

    `order` `[N]` is the order that both sides are cut up in; None: as they are. Trusted: it waits
    for no device.
    """
    lead = keep.shape[:2]
    sizes = [
        block_sizes(count, block, keep.device).expand(*lead, -1)
        for count, block in zip(tokens, blocks, strict=True)
    ]
    if order is not None:
        order = order.expand(*lead, -1)
    return BlockPlan(
        order,
        order,
        sizes[0],
        sizes[1],
        keep,
        terms,
        check=False,
        query_tokens=tokens[0],
        key_tokens=tokens[1],
    )
