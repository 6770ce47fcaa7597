"""Block-sparse attention, forward: one program per query tile, an online softmax over what it
keeps.

Kept key blocks are read in pieces of 16 tokens, four of which fill a tile of 64 columns whatever
their blocks; rows are gathered through the token order in the loads themselves. A row of 128
bfloat16 numbers is 256 bytes in a row, so a gathered row moves no more bytes than a copied one
would, and no copy of keys and values is needed. Every lane reads a token that is kept, so loads
need no masks, and a bias from a list hides those that only fill a tile. The terms of left-out
blocks are further rows of the same softmax.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from svoo.core.layout import dense_rows, empty_rows, plain
from svoo.core.plan import BlockPlan
from svoo.kernels.triton.attend import attend
from svoo.kernels.triton.launch import Launch, padded, products
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
    plan: BlockPlan,
    *,
    scale: float,
    return_lse: bool,
    only_terms: bool = False,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attend from query `[B, H, N, D]` to key, value `[B, H, M, D]` as a plan says.

    Returns the output `[B, H, N, D]` and the natural log-sum-exp, float32 `[B, H, N]`, or None.
    `only_terms` leaves the kept blocks to somebody else; a row without any term has output 0 and
    log-sum-exp minus infinity. Does not wait for the device.
    """
    tile = tile or attention_tile(architecture_of(query.device), query.dtype)
    query, key, value = (dense_rows(tokens) for tokens in (query, key, value))
    kept = lanes = lse = None
    query_pieces = cut(plan.query_sizes, tile.rows, query.shape[2])
    if not only_terms:
        key_pieces = cut(plan.key_sizes, PIECE, key.shape[2])
        kept, lanes = keep_pieces(key_pieces, plan.keep), spread(key_pieces, plan.key_order)
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
        query_order=plan.query_order,
        query_pieces=query_pieces,
        kept=kept,
        lanes=lanes,
        rows=find_rows(key, value, plan),
        query_blocks=plan.keep.shape[2],
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
        f"{name}_{axis}": tensor.stride(dim)
        for name, tensor in tensors.items()
        for dim, axis in enumerate(("batch", "head", "token"))
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
    return Launch(attend, grid, arguments, tile.warps, tile.stages)
