"""The far-field pass: what query centroids see of every key block (`core.far_field.look`).

One program for a tile of query centroids and one key block: it streams over the block's keys and
values once, with an online softmax. Nothing of size query blocks x keys is held.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from svoo.core.layout import dense_rows, plain
from svoo.kernels.triton.launch import Launch, multiply, padded, products
from svoo.kernels.triton.tiles import Tile, architecture_of, far_field_tile

_LOWEST = -3.0e38


def look(
    query_centroids: Tensor,
    key_centroids: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor | None,
    key_sizes: Tensor,
    *,
    scale: float,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:
    """Return log S, float32 `[B, H, Cq, Ck]` (minus infinity for an empty block), and V
    `[B, H, Cq, Ck, D]` in the tokens' dtype (0 for an empty block).

    query_centroids `[B, H, Cq, D]`, key_centroids `[B, H, Ck, D]`, both rounded to the tokens'
    dtype here; key and value `[B, H, M, D]`, whose blocks of key_sizes `[B, H, Ck]` follow one
    another in `order` `[B, H, M]` (None: as they are). Does not wait for the device.
    """
    tile = tile or far_field_tile(architecture_of(key.device), key.dtype)
    shape = (*query_centroids.shape[:3], key_sizes.shape[2])
    log_sum = torch.empty(shape, dtype=torch.float32, device=key.device)
    seen = torch.empty((*shape, key.shape[3]), dtype=key.dtype, device=key.device)
    plan_launch(
        query_centroids.to(key.dtype),
        key_centroids.to(key.dtype),
        dense_rows(key),
        dense_rows(value),
        order,
        key_sizes,
        log_sum,
        seen,
        scale=scale,
        tile=tile,
    ).run()
    return log_sum, seen


def plan_launch(
    query_centroids: Tensor,
    key_centroids: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor | None,
    key_sizes: Tensor,
    log_sum: Tensor,
    seen: Tensor,
    *,
    scale: float,
    tile: Tile,
) -> Launch:
    """Return the launch that fills log_sum and seen; rows of the tokens are dense."""
    batch, heads, keys, size = key.shape
    query_blocks, key_blocks = log_sum.shape[2:]
    arguments = {
        "query": plain(query_centroids),
        "centre": plain(key_centroids),
        "key": key,
        "value": value,
        "order": None if order is None else plain(order),
        "sizes": plain(key_sizes),
        "ends": key_sizes.cumsum(dim=-1),
        "log_sum": log_sum,
        "seen": seen,
        "key_batch": key.stride(0),
        "key_head": key.stride(1),
        "key_token": key.stride(2),
        "value_batch": value.stride(0),
        "value_head": value.stride(1),
        "value_token": value.stride(2),
        "heads": heads,
        "keys": keys,
        "query_blocks": query_blocks,
        "key_blocks": key_blocks,
        "factor": scale * math.log2(math.e),
        "SIZE": size,
        "WIDTH": padded(size),
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "LOWEST": _LOWEST,
        "STAGES": tile.stages,
        "PRODUCTS": products(tile),
    }
    # Tiles of query centroids first: those that read the same keys start together.
    grid = (triton.cdiv(query_blocks, tile.rows), key_blocks, batch * heads)
    return Launch(_look, grid, arguments, tile.warps, tile.stages)


@triton.jit
def _look(
    query,
    centre,
    key,
    value,
    order,
    sizes,
    ends,
    log_sum,
    seen,
    key_batch,
    key_head,
    key_token,
    value_batch,
    value_head,
    value_token,
    heads,
    keys,
    query_blocks,
    key_blocks,
    factor,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LOWEST: tl.constexpr,
    STAGES: tl.constexpr,
    PRODUCTS: tl.constexpr,
):
    pair = tl.program_id(2).to(tl.int64)  # 64 bits: the offsets below can pass 2^31
    block = pair * key_blocks + tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own = rows < query_blocks
    numbers = tl.arange(0, WIDTH)
    real = (numbers < SIZE)[None, :]
    lanes = tl.arange(0, COLUMNS)
    query += pair * query_blocks * SIZE
    asking = tl.load(
        query + rows[:, None] * SIZE + numbers[None, :], mask=own[:, None] & real, other=0.0
    )
    middle = tl.load(centre + block * SIZE + numbers, mask=numbers < SIZE, other=0.0)
    middle_logit = tl.sum(asking.to(tl.float32) * middle.to(tl.float32)[None, :], axis=1) * factor

    size = tl.load(sizes + block)
    start = tl.load(ends + block) - size
    key += pair // heads * key_batch + pair % heads * key_head
    value += pair // heads * value_batch + pair % heads * value_head
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    peak = tl.full([ROWS], LOWEST, tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    for first in tl.range(0, size, COLUMNS, num_stages=STAGES):
        inside = first + lanes < size
        tokens = start + first + lanes
        if order is not None:
            tokens = tl.load(order + pair * keys + tokens, mask=inside, other=0)
        some = inside[:, None] & real
        asked = tl.load(key + tokens[:, None] * key_token + numbers[None, :], mask=some, other=0.0)
        told = tl.load(
            value + tokens[:, None] * value_token + numbers[None, :], mask=some, other=0.0
        )
        logits = multiply(asking, tl.trans(asked), PRODUCTS) * factor
        logits = tl.where(inside[None, :], logits, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(logits, axis=1))
        weights = tl.exp2(logits - new_peak[:, None])
        fade = tl.exp2(peak - new_peak)
        weight = weight * fade + tl.sum(weights, axis=1)
        total = total * fade[:, None] + multiply(weights.to(told.dtype), told, PRODUCTS)
        peak = new_peak

    found = weight != 0
    weight = tl.where(found, weight, 1.0)
    natural = (peak + tl.log2(weight) - middle_logit) * 0.6931471805599453
    cells = (pair * query_blocks + rows) * key_blocks + tl.program_id(1)
    tl.store(log_sum + cells, tl.where(found, natural, float("-inf")), mask=own)
    tl.store(
        seen + cells[:, None] * SIZE + numbers[None, :],
        (total / weight[:, None]).to(seen.dtype.element_ty),
        mask=own[:, None] & real,
    )
