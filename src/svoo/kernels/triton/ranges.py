"""Blocks of any size cut into pieces of a fixed length, and for each query block the key pieces it
keeps.

All on the device: numbers of pieces are bounds that the host knows, not counts that it would have
to wait for.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from svoo.core.layout import plain
from svoo.kernels.triton.launch import Launch

PIECE = 16
"""Key tokens in a piece. A list holds one number per piece. The last piece of a block is half full
on average: 7.5 of its 16 lanes do nothing."""
GROUP = 8
"""Pieces in the widest tile of the attention."""
_CHUNK = 1024


class Pieces(NamedTuple):
    """At most `length` consecutive tokens of one block each, int32 `[B, H, P]`: the block, the
    first token's position in block order, the number of tokens (0: there is no such piece)."""

    block: Tensor
    start: Tensor
    size: Tensor


class Kept(NamedTuple):
    """For each query block the key pieces that it keeps: `entries` int32 `[B, H, Cq, P + GROUP]`,
    of which the first `counts` int32 `[B, H, Cq]` are filled.

    An entry is twice the number of its piece. Behind the last one stand GROUP more that say the
    same piece plus one: to be read, because a tile has room, but not to be counted.
    """

    entries: Tensor
    counts: Tensor


class Lanes(NamedTuple):
    """What the lanes of key pieces read: tokens int32 `[B, H, P * PIECE]`, in the original order,
    and their biases float32 `[B, H, (1 + P) * PIECE]`: 0, or minus infinity behind the end of a
    piece, where its last token stands again. The first PIECE biases are minus infinity."""

    tokens: Tensor
    bias: Tensor


def cut(sizes: Tensor, length: int, tokens: int) -> Pieces:
    """Cut blocks of `sizes` `[B, H, C]`, which sum to `tokens` in every head, into pieces."""
    blocks = sizes.shape[2]
    numbers = (sizes + length - 1) // length
    ends = numbers.cumsum(dim=-1)
    bound = min(tokens, tokens // length + blocks)  # each block has one short piece at most
    pieces = torch.arange(bound, device=sizes.device).expand(*sizes.shape[:2], bound).contiguous()
    block = torch.searchsorted(ends, pieces, right=True).clamp(max=blocks - 1)
    first = (pieces - (ends - numbers).gather(-1, block)) * length  # inside its block
    start = (sizes.cumsum(dim=-1) - sizes).gather(-1, block) + first
    size = (sizes.gather(-1, block) - first).clamp(0, length)
    return Pieces(block.int(), start.int(), size.int())


def spread(keys: Pieces, order: Tensor | None) -> Lanes:
    """Return the lanes of key pieces of length PIECE whose tokens stand in an order `[B, H, M]`
    (None: as they are)."""
    steps = torch.arange(PIECE, dtype=torch.int32, device=keys.size.device)
    size = keys.size.unsqueeze(-1)
    tokens = keys.start.unsqueeze(-1) + torch.minimum(steps, size - 1)
    tokens = tokens.clamp(min=0).flatten(2)  # pieces that do not exist stand nowhere
    if order is not None:
        tokens = order.int().gather(2, tokens.clamp(max=order.shape[2] - 1).long())
    bias = torch.zeros_like(tokens, dtype=torch.float32)
    bias.masked_fill_((steps >= size).flatten(2), -torch.inf)
    bias = torch.nn.functional.pad(bias, (PIECE, 0), value=-torch.inf)
    return Lanes(tokens.contiguous(), bias)


def keep_pieces(keys: Pieces, keep: Tensor) -> Kept:
    """List the pieces whose blocks a query block keeps; keep is `[B, H, Cq, Ck]`."""
    batch, heads, query_blocks, _ = keep.shape
    shape = (batch, heads, query_blocks, keys.block.shape[2] + GROUP)
    kept = Kept(
        torch.empty(shape, dtype=torch.int32, device=keep.device),
        torch.empty(shape[:3], dtype=torch.int32, device=keep.device),
    )
    plan_launch(keys, keep, kept).run()
    return kept


def plan_launch(keys: Pieces, keep: Tensor, kept: Kept) -> Launch:
    """Return the launch that fills `kept`."""
    batch, heads, query_blocks, key_blocks = keep.shape
    arguments = {
        "block": keys.block,
        "size": keys.size,
        "keep": plain(keep),
        "entries": kept.entries,
        "counts": kept.counts,
        "pieces": keys.block.shape[2],
        "key_blocks": key_blocks,
        "GROUP": GROUP,
        "CHUNK": _CHUNK,
    }
    return Launch(_keep_pieces, (query_blocks, batch * heads), arguments, warps=4, stages=3)


@triton.jit
def _keep_pieces(
    block,
    size,
    keep,
    entries,
    counts,
    pieces,
    key_blocks,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
):
    pair = tl.program_id(1).to(tl.int64)  # 64 bits: the offsets below can pass 2^31
    row = pair * tl.num_programs(0) + tl.program_id(0)
    keep += row * key_blocks
    entries += row * (pieces + GROUP)
    found = 0
    last = 0
    for first in range(0, pieces, CHUNK):
        numbers = first + tl.arange(0, CHUNK)
        inside = numbers < pieces
        here = pair * pieces + numbers
        length = tl.load(size + here, mask=inside, other=0)
        wanted = tl.load(
            keep + tl.load(block + here, mask=inside, other=0), mask=length > 0, other=0
        )
        taken = (wanted != 0).to(tl.int32)
        ranks = found + tl.cumsum(taken, axis=0) - taken
        tl.store(entries + ranks, 2 * numbers, mask=taken != 0)
        found += tl.sum(taken, axis=0)
        last = tl.maximum(last, tl.max(numbers * taken, axis=0))
    tl.store(entries + found + tl.arange(0, GROUP), tl.full([GROUP], 1, tl.int32) + 2 * last)
    tl.store(counts + row, found)
