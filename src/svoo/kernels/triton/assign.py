"""Labels of tokens: argmax_j <token, weights_j> + bias_j, streaming over the centroids.

Nothing of size tokens x centroids is held. With W of `core.clustering` as weights this one kernel
is an assignment of co-clustering; with centroids and minus half their squares, one of k-means.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from svoo.core.layout import dense_rows
from svoo.kernels.triton.launch import Launch, multiply, padded, products
from svoo.kernels.triton.tiles import Tile, architecture_of, assignment_tile


def assign(
    tokens: Tensor, weights: Tensor, bias: Tensor | None = None, tile: Tile | None = None
) -> Tensor:
    """Return argmax_j <token, weights_j> + bias_j, int64 `[B, H, N]`; the first of equals wins.

    tokens `[B, H, N, D]`; weights `[B, H, C, D]` and bias `[B, H, C]` in float32. The weights are
    rounded to the tokens' dtype, so centre them before; scores are float32.
    """
    labels = torch.empty(tokens.shape[:3], dtype=torch.int64, device=tokens.device)
    if bias is None:
        bias = weights.new_zeros(weights.shape[:3])
    # A power of two for each head, so that float16 holds the weights; the choice stays the same.
    _, exponent = torch.frexp(weights.abs().amax(dim=(2, 3)))
    factor = torch.ldexp(torch.ones_like(exponent, dtype=weights.dtype), -exponent)
    weights = weights * factor[:, :, None, None]
    bias = bias * factor[:, :, None]
    tile = tile or assignment_tile(architecture_of(tokens.device), tokens.dtype, tokens.shape[3])
    plan_launch(tokens, weights.to(tokens.dtype), bias, labels, tile).run()
    return labels


def plan_launch(
    tokens: Tensor, weights: Tensor, bias: Tensor, labels: Tensor, tile: Tile
) -> Launch:
    """Return the launch that fills labels `[B, H, N]`; weights and tokens have one dtype."""
    batch, heads, count, size = tokens.shape
    tokens = dense_rows(tokens)
    arguments = {
        "tokens": tokens,
        "weights": weights.contiguous(),
        "bias": bias.contiguous(),
        "labels": labels,
        "batch_stride": tokens.stride(0),
        "head_stride": tokens.stride(1),
        "token_stride": tokens.stride(2),
        "heads": heads,
        "count": count,
        "clusters": weights.shape[2],
        "SIZE": size,
        "WIDTH": padded(size),
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "PRODUCTS": products(tile),
    }
    grid = (triton.cdiv(count, tile.rows), batch * heads)
    return Launch(_assign, grid, arguments, tile.warps, tile.stages)


def multiply_adds(tokens: int, clusters: int, size: int, tile: Tile) -> int:
    """Count the multiply-adds of one head's assignment from the bounds of the kernel's loops."""
    programs = triton.cdiv(tokens, tile.rows)
    rounds = len(range(0, clusters, tile.columns))
    return int(programs * rounds * tile.rows * tile.columns * padded(size))


@triton.jit
def _assign(
    tokens,
    weights,
    bias,
    labels,
    batch_stride,
    head_stride,
    token_stride,
    heads,
    count,
    clusters,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRODUCTS: tl.constexpr,
):
    pair = tl.program_id(1).to(tl.int64)  # 64 bits: the offsets below can pass 2^31
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    numbers = tl.arange(0, WIDTH)
    inside = rows < count
    tokens += pair // heads * batch_stride + pair % heads * head_stride
    own = tl.load(
        tokens + rows[:, None] * token_stride + numbers[None, :],
        mask=inside[:, None] & (numbers < SIZE)[None, :],
        other=0.0,
    )
    weights += pair * clusters * SIZE
    bias += pair * clusters
    best = tl.full([ROWS], float("-inf"), tl.float32)
    label = tl.zeros([ROWS], tl.int32)
    for first in range(0, clusters, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        real = columns < clusters
        others = tl.load(
            weights + columns[:, None] * SIZE + numbers[None, :],
            mask=real[:, None] & (numbers < SIZE)[None, :],
            other=0.0,
        )
        scores = multiply(own, tl.trans(others), PRODUCTS)
        scores += tl.load(bias + columns, mask=real, other=float("-inf"))[None, :]
        top, column = tl.max(scores, axis=1, return_indices=True)
        better = top > best  # strictly: an equal score further on does not win
        best = tl.where(better, top, best)
        label = tl.where(better, first + column, label)
    tl.store(labels + pair * count + rows, label.to(tl.int64), mask=inside)
