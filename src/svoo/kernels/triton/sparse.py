"""Block-sparse attention, forward: one program a query tile, an online softmax over what it keeps.

Kept key blocks are read in pieces of 16 tokens, four of which fill a tile of 64 columns whatever
their blocks; rows are gathered through the token order in the loads themselves. A row of 128
bfloat16 numbers is 256 bytes in one place, so a gathered row moves no more bytes than a copied one
would, and no copy of keys and values is needed. Every lane reads a token that is kept, so loads
need no masks, and a bias from a list hides those that only fill a tile. The terms of left-out
blocks are further rows of the same softmax.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from svoo.core.layout import dense_rows, empty_rows, plain
from svoo.core.terms import Terms
from svoo.kernels.triton.launch import Launch, multiply, padded, products
from svoo.kernels.triton.ranges import (
    GROUP,
    PIECE,
    Kept,
    Lanes,
    Pieces,
    cut,
    keep_pieces,
    spread,
)
from svoo.kernels.triton.rows import TermRows, find_rows
from svoo.kernels.triton.tiles import Tile, architecture_of, attention_tile

_LOWEST = -3.0e38  # below every logit, and unlike minus infinity it can be subtracted from itself
_TERM_STAGES = 4


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
    terms: Terms | None,
    scale: float,
    return_lse: bool,
    only_terms: bool = False,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attend from query `[B, H, N, D]` to key, value `[B, H, M, D]`; the rest is a `BlockPlan`'s.

    Returns the output `[B, H, N, D]` and the natural log-sum-exp, float32 `[B, H, N]`, or None.
    `only_terms` leaves the kept blocks to somebody else; a row without any term has output 0 and
    log-sum-exp minus infinity. Does not wait for the device.
    """
    tile = tile or attention_tile(architecture_of(query.device), query.dtype)
    query, key, value = (dense_rows(tokens) for tokens in (query, key, value))
    kept = lanes = lse = None
    query_pieces = cut(query_sizes, tile.rows, query.shape[2])
    if not only_terms:
        key_pieces = cut(key_sizes, PIECE, key.shape[2])
        kept, lanes = keep_pieces(key_pieces, keep), spread(key_pieces, key_order)
        query_pieces = _longest_first(query_pieces, kept.counts)
    if return_lse:
        lse = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    output = empty_rows(query)
    plan_launch(
        query,
        key,
        value,
        output,
        lse,
        query_order=query_order,
        query_pieces=query_pieces,
        kept=kept,
        lanes=lanes,
        rows=find_rows(key, value, key_order, key_sizes, keep, terms),
        query_blocks=keep.shape[2],
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


def plan_launch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor | None,
    *,
    query_order: Tensor | None,
    query_pieces: Pieces,
    kept: Kept | None,
    lanes: Lanes | None,
    rows: TermRows,
    query_blocks: int,
    scale: float,
    tile: Tile,
) -> Launch:
    """Return the launch that fills output and lse; rows of the tokens are dense."""
    batch, heads, queries, size = query.shape
    tensors = {"query": query, "key": key, "value": value, "output": output}
    strides = {
        f"{name}_{axis}": tensor.stride(place)
        for name, tensor in tensors.items()
        for place, axis in enumerate(("batch", "head", "token"))
    }
    far = max(tensor.stride(2) * tensor.shape[2] for tensor in (key, value))
    arguments = {
        **tensors,
        "lse": lse,
        "query_order": None if query_order is None else plain(query_order),
        "piece_block": query_pieces.block,
        "piece_start": query_pieces.start,
        "piece_size": query_pieces.size,
        "entries": None if kept is None else kept.entries,
        "counts": None if kept is None else kept.counts,
        "lane_tokens": None if lanes is None else lanes.tokens,
        "lane_bias": None if lanes is None else lanes.bias,
        **rows.arguments(),
        **strides,
        "heads": heads,
        "queries": queries,
        "key_pieces": 0 if kept is None else kept.entries.shape[3] - GROUP,
        "query_blocks": query_blocks,
        "factor": scale * math.log2(math.e),
        "SIZE": size,
        "WIDTH": padded(size),
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "PIECE": PIECE,
        "GROUP": GROUP,
        "LOWEST": _LOWEST,
        "WIDE": far + padded(size) >= 1 << 31,
        "SAME": key.stride() == value.stride(),
        "STAGES": tile.stages,
        "TERM_STAGES": min(_TERM_STAGES, tile.stages),
        "PRODUCTS": products(tile),
    }
    grid = (query_pieces.block.shape[2], batch * heads)
    return Launch(_attend, grid, arguments, tile.warps, tile.stages)


@triton.jit
def _load(rows, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Load rows of SIZE numbers from pointers `[R, 1]` to their first, filled up with 0 to WIDTH
    numbers."""
    numbers = tl.arange(0, WIDTH)[None, :]
    if SIZE == WIDTH:
        return tl.load(rows + numbers)
    return tl.load(rows + numbers, mask=numbers < SIZE, other=0.0)


@triton.jit
def _absorb(total, peak, weight, queries, keys, values, bias, factor, PRODUCTS: tl.constexpr):
    """Take a tile of keys and values into the running softmax of all rows; logits are binary."""
    logits = multiply(queries, tl.trans(keys), PRODUCTS) * factor + bias[None, :]
    new_peak = tl.maximum(peak, tl.max(logits, axis=1))
    weights = tl.exp2(logits - new_peak[:, None])
    fade = tl.exp2(peak - new_peak)
    weight = weight * fade + tl.sum(weights, axis=1)
    total = total * fade[:, None] + multiply(weights.to(values.dtype), values, PRODUCTS)
    return total, new_peak, weight


@triton.jit
def _absorb_terms(
    total,
    peak,
    weight,
    queries,
    key,
    value,
    bias,
    entries,
    count,
    factor,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
    PRODUCTS: tl.constexpr,
):
    """Take the first `count` terms of a query block, all or those that `entries` list."""
    numbers = tl.arange(0, WIDTH)
    lanes = tl.arange(0, COLUMNS)
    for first in tl.range(0, count, COLUMNS, num_stages=STAGES):
        slots = first + lanes
        inside = slots < count
        terms = slots
        if entries is not None:
            terms = tl.load(entries + slots, mask=inside, other=0) // 2
        own_bias = tl.load(bias + terms, mask=inside, other=float("-inf"))
        places = terms[:, None] * SIZE + numbers[None, :]
        some = (own_bias > float("-inf"))[:, None] & (numbers < SIZE)[None, :]
        asked = tl.load(key + places, mask=some, other=0.0)
        told = tl.load(value + places, mask=some, other=0.0)
        total, peak, weight = _absorb(
            total, peak, weight, queries, asked, told, own_bias, factor, PRODUCTS
        )
    return total, peak, weight


@triton.jit
def _attend(
    query,
    key,
    value,
    output,
    lse,
    query_order,
    piece_block,
    piece_start,
    piece_size,
    entries,
    counts,
    lane_tokens,
    lane_bias,
    term_key,
    term_value,
    term_bias,
    term_entries,
    term_counts,
    group_key,
    group_value,
    group_bias,
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
    key_pieces,
    query_blocks,
    terms,
    groups,
    factor,
    VALUE_BY_BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PIECE: tl.constexpr,
    GROUP: tl.constexpr,
    LOWEST: tl.constexpr,
    WIDE: tl.constexpr,
    SAME: tl.constexpr,
    STAGES: tl.constexpr,
    TERM_STAGES: tl.constexpr,
    PRODUCTS: tl.constexpr,
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
        lanes = tl.arange(0, COLUMNS)
        entries += block * (key_pieces + GROUP) + lanes // PIECE
        lane_tokens += pair * key_pieces * PIECE + lanes % PIECE
        lane_bias += pair * (key_pieces + 1) * PIECE + lanes % PIECE
        key += batch * key_batch + head * key_head
        value += batch * value_batch + head * value_head
        kept = tl.load(counts + block)
        for first in tl.range(0, kept, COLUMNS // PIECE, num_stages=STAGES):
            entry = tl.load(entries + first)
            place = entry // 2 * PIECE
            bias = tl.load(lane_bias + tl.where(entry % 2 == 0, place + PIECE, 0))
            tokens = tl.load(lane_tokens + place)
            if WIDE:
                tokens = tokens.to(tl.int64)
            asked = _load(key + (tokens * key_token)[:, None], SIZE, WIDTH)
            if SAME:
                told = _load(value + (tokens * key_token)[:, None], SIZE, WIDTH)
            else:
                told = _load(value + (tokens * value_token)[:, None], SIZE, WIDTH)
            total, peak, weight = _absorb(
                total, peak, weight, asking, asked, told, bias, factor, PRODUCTS
            )

    if term_bias is not None:
        value_row = block if VALUE_BY_BLOCK else pair
        total, peak, weight = _absorb_terms(
            total,
            peak,
            weight,
            asking,
            term_key + pair * terms * SIZE,
            term_value + value_row * terms * SIZE,
            term_bias + block * terms,
            term_entries + block * (terms + GROUP),
            tl.load(term_counts + block),
            factor,
            SIZE,
            WIDTH,
            COLUMNS,
            TERM_STAGES,
            PRODUCTS,
        )
    if group_bias is not None:
        total, peak, weight = _absorb_terms(
            total,
            peak,
            weight,
            asking,
            group_key + block * groups * SIZE,
            group_value + block * groups * SIZE,
            group_bias + block * groups,
            None,
            groups,
            factor,
            SIZE,
            WIDTH,
            16,  # there are few: the least that a tensor core takes
            1,
            PRODUCTS,
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
