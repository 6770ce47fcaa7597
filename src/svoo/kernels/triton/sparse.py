"""Block-sparse attention, forward: one program a query tile, an online softmax over what it keeps.

Kept key blocks are read in pieces of 16 tokens, four of which fill a tile of 64 columns whatever
their blocks; rows are gathered through the token order in the loads themselves. A row of 128
bfloat16 numbers is 256 bytes in one place, so a gathered row moves no more bytes than a copied one
would, and no copy of keys and values is needed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from svoo.core.layout import dense_rows, empty_rows, plain
from svoo.kernels.triton.centroids import fill_means
from svoo.kernels.triton.launch import Launch, interpreted, multiply, padded
from svoo.kernels.triton.ranges import PIECE, Kept, Pieces, cut, keep_pieces
from svoo.kernels.triton.tiles import Tile, architecture_of, attention_tile

_LOWEST = -3.0e38  # below every logit, and unlike minus infinity it can be subtracted from itself


class Means(NamedTuple):
    """What left-out blocks add: mean keys and values `[B, H, Ck, D]`, and the binary logarithm of
    their sizes, float32 `[B, H, Ck]`, minus infinity for blocks that add nothing."""

    key: Tensor
    value: Tensor
    log_size: Tensor


def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    query_order: Tensor | None,
    key_order: Tensor | None,
    query_sizes: Tensor,
    key_sizes: Tensor,
    keep: Tensor,
    compensate: Tensor | None,
    scale: float,
    return_lse: bool,
    only_compensation: bool = False,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attend from query `[B, H, N, D]` to key, value `[B, H, M, D]`; the rest is a `BlockPlan`'s.

    Returns the output `[B, H, N, D]` and the natural log-sum-exp, float32 `[B, H, N]`, or None.
    `only_compensation` leaves the kept blocks to somebody else; a row without any term has output
    0 and log-sum-exp minus infinity. Does not wait for the device.
    """
    tile = tile or attention_tile(architecture_of(query.device), query.dtype)
    query, key, value = (dense_rows(tokens) for tokens in (query, key, value))
    kept = means = lse = None
    query_pieces = cut(query_sizes, tile.rows, query.shape[2])
    if not only_compensation:
        kept = keep_pieces(cut(key_sizes, PIECE, key.shape[2]), keep)
        query_pieces = _longest_first(query_pieces, kept.counts)
    if compensate is not None:
        means = _means(key, value, key_order, key_sizes, compensate)
    if return_lse:
        lse = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    output = empty_rows(query)
    plan_launch(
        query,
        key,
        value,
        output,
        lse,
        orders=(query_order, key_order),
        query_pieces=query_pieces,
        kept=kept,
        means=means,
        keep=keep,
        scale=scale,
        tile=tile,
    ).run()
    return output, lse


def _longest_first(pieces: Pieces, counts: Tensor) -> Pieces:
    """Put the query pieces that keep most keys first in every head, so that none starts last.

    Heads stay one after another: a head's keys and values fit into the second-level cache, those
    of all heads do not.
    """
    work = counts.gather(-1, pieces.block.long()) * (pieces.size > 0)
    order = work.argsort(dim=-1, descending=True, stable=True)
    return Pieces(*(part.gather(-1, order) for part in pieces))


def _means(
    key: Tensor, value: Tensor, order: Tensor | None, sizes: Tensor, compensate: Tensor
) -> Means:
    shape = (*sizes.shape, key.shape[3])
    key_means, value_means = key.new_zeros(shape), value.new_zeros(shape)
    fill_means(key, order, sizes, key_means)
    fill_means(value, order, sizes, value_means)
    log_size = sizes.float().log2().masked_fill(~compensate, -torch.inf)
    return Means(key_means, value_means, log_size)


def plan_launch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor | None,
    *,
    orders: tuple[Tensor | None, Tensor | None],
    query_pieces: Pieces,
    kept: Kept | None,
    means: Means | None,
    keep: Tensor,
    scale: float,
    tile: Tile,
) -> Launch:
    """Return the launch that fills output and lse; rows of the tokens are dense."""
    batch, heads, queries, size = query.shape
    query_order, key_order = (None if order is None else plain(order) for order in orders)
    tensors = {"query": query, "key": key, "value": value, "output": output}
    strides = {
        f"{name}_{axis}": tensor.stride(place)
        for name, tensor in tensors.items()
        for place, axis in enumerate(("batch", "head", "token"))
    }
    arguments = {
        **tensors,
        "lse": lse,
        "query_order": query_order,
        "key_order": key_order,
        "piece_block": query_pieces.block,
        "piece_start": query_pieces.start,
        "piece_size": query_pieces.size,
        "entries": None if kept is None else kept.entries,
        "counts": None if kept is None else kept.counts,
        "key_means": None if means is None else means.key,
        "value_means": None if means is None else means.value,
        "log_sizes": None if means is None else means.log_size,
        "keep": keep.contiguous(),
        **strides,
        "heads": heads,
        "queries": queries,
        "keys": key.shape[2],
        "entry_bound": 0 if kept is None else kept.entries.shape[3],
        "query_blocks": keep.shape[2],
        "key_blocks": keep.shape[3],
        "factor": scale * math.log2(math.e),
        "SIZE": size,
        "WIDTH": padded(size),
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "PIECE": PIECE,
        "LOWEST": _LOWEST,
        "UPCAST": interpreted(),
    }
    grid = (query_pieces.block.shape[2], batch * heads)
    return Launch(_attend, grid, arguments, tile.warps, tile.stages)


@triton.jit
def _absorb(total, peak, weight, queries, keys, values, bias, factor, UPCAST: tl.constexpr):
    """Take a tile of keys and values into the running softmax of all rows; logits are binary."""
    logits = multiply(queries, tl.trans(keys), UPCAST) * factor + bias[None, :]
    new_peak = tl.maximum(peak, tl.max(logits, axis=1))
    weights = tl.exp2(logits - new_peak[:, None])
    fade = tl.exp2(peak - new_peak)
    weight = weight * fade + tl.sum(weights, axis=1)
    total = total * fade[:, None] + multiply(weights.to(values.dtype), values, UPCAST)
    return total, new_peak, weight


@triton.jit
def _attend(
    query,
    key,
    value,
    output,
    lse,
    query_order,
    key_order,
    piece_block,
    piece_start,
    piece_size,
    entries,
    counts,
    key_means,
    value_means,
    log_sizes,
    keep,
    query_batch,
    query_head,
    query_token,
    key_batch,
    key_head,
    key_token,
    value_batch,
    value_head,
    value_token,
    output_batch,
    output_head,
    output_token,
    heads,
    queries,
    keys,
    entry_bound,
    query_blocks,
    key_blocks,
    factor,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PIECE: tl.constexpr,
    LOWEST: tl.constexpr,
    UPCAST: tl.constexpr,
):
    pair = tl.program_id(1).to(tl.int64)  # 64 bits: the offsets below can pass 2^31
    piece = pair * tl.num_programs(0) + tl.program_id(0)
    size = tl.load(piece_size + piece)
    if size == 0:
        return
    block = pair * query_blocks + tl.load(piece_block + piece)
    batch = pair // heads
    head = pair % heads

    numbers = tl.arange(0, WIDTH)
    real = (numbers < SIZE)[None, :]
    lanes = tl.arange(0, COLUMNS)
    steps = tl.arange(0, ROWS)
    own = steps < size
    rows = (tl.load(piece_start + piece) + steps).to(tl.int64)
    if query_order is not None:
        rows = tl.load(query_order + pair * queries + rows, mask=own, other=0)
    query += batch * query_batch + head * query_head
    asking = tl.load(
        query + rows[:, None] * query_token + numbers[None, :], mask=own[:, None] & real, other=0.0
    )
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    peak = tl.full([ROWS], LOWEST, tl.float32)
    weight = tl.zeros([ROWS], tl.float32)

    if entries is not None:
        entries += block * entry_bound
        key += batch * key_batch + head * key_head
        value += batch * value_batch + head * value_head
        kept = tl.load(counts + block)
        for first in range(0, kept, COLUMNS // PIECE):
            slots = first + lanes // PIECE
            entry = tl.load(entries + slots, mask=slots < kept, other=0)
            inside = (slots < kept) & (lanes % PIECE <= entry % PIECE)
            tokens = (entry // PIECE + lanes % PIECE).to(tl.int64)
            if key_order is not None:
                tokens = tl.load(key_order + pair * keys + tokens, mask=inside, other=0)
            some = inside[:, None] & real
            asked = tl.load(
                key + tokens[:, None] * key_token + numbers[None, :], mask=some, other=0.0
            )
            told = tl.load(
                value + tokens[:, None] * value_token + numbers[None, :], mask=some, other=0.0
            )
            bias = tl.where(inside, 0.0, float("-inf"))
            total, peak, weight = _absorb(
                total, peak, weight, asking, asked, told, bias, factor, UPCAST
            )

    if key_means is not None:
        keep += block * key_blocks
        log_sizes += pair * key_blocks
        key_means += pair * key_blocks * SIZE
        value_means += pair * key_blocks * SIZE
        for first in range(0, key_blocks, COLUMNS):
            blocks = first + lanes
            inside = blocks < key_blocks
            left_out = tl.load(keep + blocks, mask=inside, other=1) == 0
            bias = tl.load(log_sizes + blocks, mask=inside, other=0.0)
            bias = tl.where(left_out, bias, float("-inf"))
            places = blocks[:, None] * SIZE + numbers[None, :]
            some = inside[:, None] & real
            asked = tl.load(key_means + places, mask=some, other=0.0)
            told = tl.load(value_means + places, mask=some, other=0.0)
            total, peak, weight = _absorb(
                total, peak, weight, asking, asked, told, bias, factor, UPCAST
            )

    seen = weight > 0
    weight = tl.where(seen, weight, 1.0)
    output += batch * output_batch + head * output_head
    tl.store(
        output + rows[:, None] * output_token + numbers[None, :],
        (total / weight[:, None]).to(output.dtype.element_ty),
        mask=own[:, None] & real,
    )
    if lse is not None:
        natural = (peak + tl.log2(weight)) * 0.6931471805599453
        natural = tl.where(seen, natural, float("-inf"))
        tl.store(lse + pair * queries + rows, natural, mask=own)
