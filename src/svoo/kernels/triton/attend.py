"""The attention kernel: one program per query tile, an online softmax over rows of keys and
values.

Rows are kept tokens, then the terms of left-out blocks, then terms that blocks share; `sparse.py`
has the launch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from svoo.kernels.triton.launch import multiply


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
        offsets = terms[:, None] * SIZE + numbers[None, :]
        some = (own_bias > float("-inf"))[:, None] & (numbers < SIZE)[None, :]
        asked = tl.load(key + offsets, mask=some, other=0.0)
        told = tl.load(value + offsets, mask=some, other=0.0)
        total, peak, weight = _absorb(
            total, peak, weight, queries, asked, told, own_bias, factor, PRODUCTS
        )
    return total, peak, weight


@triton.jit
def attend(
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
    """Attend from one query piece; `sparse.plan_launch` says what the arguments are."""
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
            first_lane = entry // 2 * PIECE
            bias = tl.load(lane_bias + tl.where(entry % 2 == 0, first_lane + PIECE, 0))
            tokens = tl.load(lane_tokens + first_lane)
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
