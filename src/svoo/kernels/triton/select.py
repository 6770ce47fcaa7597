"""The blocks that each query block keeps, without sorting: a threshold found bit by bit.

A row of masses or scores stays in registers. Each block is one whole number: the bits of its mass,
and below them its index, by which equal ones differ. The blocks kept are those from a number on.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from svoo.core.layout import plain
from svoo.kernels.triton.launch import Launch

MOST_BLOCKS = 8192
"""Key blocks whose masses fit into a program's registers."""
_INDEX_BITS = 16
_BITS = 31 + _INDEX_BITS  # masses are not negative
_SIGNED_BITS = 32 + _INDEX_BITS


def keep_largest(
    coarse: Tensor,
    sizes: Tensor,
    enough: int,
    whole: int,
    limit: Tensor | None = None,
    above: Tensor | None = None,
    *,
    count_tokens: bool = True,
) -> Tensor:
    """Return which key blocks to keep, bool `[B, H, Cq, Ck]`, as `core.selection.select_blocks`
    says.

    coarse float32 `[B, H, Cq, Ck]` from 0 to 1; sizes int64 `[B, H, Ck]`. The largest whose shares
    of `whole` (a power of two) reach `enough`; beside them the largest that have at most `limit`
    int64 `[B, H]` tokens or blocks, at least one. `above` bool `[B, H]`: the fewer of the two
    sets, else the more.
    """
    keep = torch.empty(coarse.shape, dtype=torch.bool, device=coarse.device)
    launch = plan_launch(
        coarse, sizes, enough, whole, limit, above, keep, count_tokens=count_tokens
    )
    launch.run()
    return keep


def plan_launch(
    coarse: Tensor,
    sizes: Tensor,
    enough: int,
    whole: int,
    limit: Tensor | None,
    above: Tensor | None,
    keep: Tensor,
    *,
    count_tokens: bool,
) -> Launch:
    """Return the launch that fills keep."""
    batch, heads, query_blocks, blocks = coarse.shape
    width = max(16, 1 << (blocks - 1).bit_length())
    arguments = {
        "coarse": plain(coarse),
        "sizes": plain(sizes),
        "limit": None if limit is None else plain(limit),
        "above": None if above is None else plain(above),
        "keep": keep,
        "blocks": blocks,
        "enough": enough,
        "WHOLE": float(whole),
        "COUNT_TOKENS": count_tokens,
        "INDEX_BITS": _INDEX_BITS,
        "BITS": _BITS,
        "WIDTH": width,
    }
    warps = 4 if width <= 2048 else 8
    return Launch(_select, (query_blocks, batch * heads), arguments, warps, stages=1)


def keep_best(
    scores: Tensor,
    count: int | Tensor,
    factor: Tensor | None = None,
    enough: int = 0,
    *,
    enough_bits: int = 0,
) -> Tensor:
    """Return which of scores float32 `[..., C]` are the `count` best of their row (one for all, or
    int64 `[..., 1]`), of equal ones the first, as bool `[..., C]`.

    With a factor `[..., 1]` the fewest best are kept too whose rounded scores, times the factor of
    their row, reach `enough` / 2^`enough_bits` of the row's sum.
    """
    keep = torch.empty(scores.shape, dtype=torch.bool, device=scores.device)
    plan_best(scores, count, factor, enough, keep, enough_bits=enough_bits).run()
    return keep


def plan_best(
    scores: Tensor,
    count: int | Tensor,
    factor: Tensor | None,
    enough: int,
    keep: Tensor,
    *,
    enough_bits: int,
) -> Launch:
    """Return the launch that fills keep as `keep_best` says."""
    blocks = scores.shape[-1]
    one_per_row = (*scores.shape[:-1], 1)
    width = max(16, 1 << (blocks - 1).bit_length())
    counts = plain(count.long().expand(one_per_row)) if isinstance(count, Tensor) else None
    arguments = {
        "scores": plain(scores),
        "counts": counts,
        "factor": None if factor is None else plain(factor.expand(one_per_row)),
        "keep": keep,
        "blocks": blocks,
        "count": 0 if isinstance(count, Tensor) else count,
        "enough": enough,
        "ENOUGH_BITS": enough_bits,
        "INDEX_BITS": _INDEX_BITS,
        "BITS": _SIGNED_BITS,
        "WIDTH": width,
    }
    warps = 4 if width <= 2048 else 8
    return Launch(_keep_best, (scores.numel() // blocks,), arguments, warps, stages=1)


@triton.jit
def _select(
    coarse,
    sizes,
    limit,
    above,
    keep,
    blocks,
    enough,
    WHOLE: tl.constexpr,
    COUNT_TOKENS: tl.constexpr,
    INDEX_BITS: tl.constexpr,
    BITS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    pair = tl.program_id(1).to(tl.int64)  # 64 bits: the offsets below can pass 2^31
    row = pair * tl.num_programs(0) + tl.program_id(0)
    numbers = tl.arange(0, WIDTH)
    inside = numbers < blocks
    share = tl.load(coarse + row * blocks + numbers, mask=inside, other=0.0)
    size = tl.load(sizes + pair * blocks + numbers, mask=inside, other=0)
    bits = share.to(tl.int32, bitcast=True).to(tl.int64)
    # An empty block is 0, below all others: there are fewer than 2^16 of them.
    ranks = tl.where(size > 0, (bits << INDEX_BITS) + ((1 << INDEX_BITS) - 1 - numbers), 0)
    # Rounded to the nearest: behind 2^23 a float32 has no bits for fractions.
    scaled = share * WHOLE
    scaled = tl.where(scaled < 8388608.0, (scaled + 8388608.0) - 8388608.0, scaled)
    parts = scaled.to(tl.int64)
    costs = size if COUNT_TOKENS else (size > 0).to(tl.int64)

    lowest = tl.full([], 0, tl.int64)  # the largest from which on there is enough
    outside = tl.full([], 0, tl.int64)  # the largest from which on there is too much
    one = tl.full([], 1, tl.int64)
    for step in range(BITS):
        bit = one << (BITS - 1 - step)
        guess = lowest + bit
        reached = tl.sum(tl.where(ranks >= guess, parts, 0), axis=0)
        lowest = tl.where(reached >= enough, guess, lowest)
        if limit is not None:
            guess = outside + bit
            cost = tl.sum(tl.where(ranks >= guess, costs, 0), axis=0)
            outside = tl.where(cost > tl.load(limit + pair), guess, outside)
    if limit is not None:
        allowed = tl.minimum(outside + 1, tl.max(ranks, axis=0))
        fewer = tl.maximum(lowest, allowed)
        lowest = tl.where(tl.load(above + pair) != 0, fewer, tl.minimum(lowest, allowed))
    kept = ranks >= tl.maximum(lowest, one)
    tl.store(keep + row * blocks + numbers, kept, mask=inside)


@triton.jit
def _keep_best(
    scores,
    counts,
    factor,
    keep,
    blocks,
    count,
    enough,
    ENOUGH_BITS: tl.constexpr,
    INDEX_BITS: tl.constexpr,
    BITS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    numbers = tl.arange(0, WIDTH)
    inside = numbers < blocks
    score = tl.load(scores + row * blocks + numbers, mask=inside, other=0.0)
    known = tl.where(score == 0.0, 0.0, score)  # minus zero is zero
    known = tl.where(known != known, float("inf"), known)
    bits = known.to(tl.int32, bitcast=True)
    # The bits of numbers rank as they do, once those of negative ones are inverted.
    bits = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648
    ranks = tl.where(inside, (bits << INDEX_BITS) + ((1 << INDEX_BITS) - 1 - numbers), 0)
    wanted = tl.full([], 0, tl.int64) + count
    if counts is not None:
        wanted = tl.load(counts + row)
    lowest = tl.full([], 0, tl.int64)  # the largest from which on there are so many
    one = tl.full([], 1, tl.int64)
    for step in range(BITS):
        guess = lowest + (one << (BITS - 1 - step))
        found = tl.sum((ranks >= guess).to(tl.int64), axis=0)
        lowest = tl.where(found >= wanted, guess, lowest)
    if factor is not None:
        scaled = score * tl.load(factor + row)
        # Rounded to the nearest: behind 2^23 a float32 has no bits for fractions.
        scaled = tl.where(scaled < 8388608.0, (scaled + 8388608.0) - 8388608.0, scaled)
        parts = scaled.to(tl.int64)
        limit = tl.sum(parts, axis=0) * enough
        heavy = tl.full([], 0, tl.int64)  # the largest from which on there is enough
        for step in range(BITS):
            guess = heavy + (one << (BITS - 1 - step))
            reached = tl.sum(tl.where(ranks >= guess, parts, 0), axis=0)
            heavy = tl.where((reached << ENOUGH_BITS) >= limit, guess, heavy)
        lowest = tl.minimum(lowest, heavy)
    tl.store(keep + row * blocks + numbers, ranks >= tl.maximum(lowest, one), mask=inside)
