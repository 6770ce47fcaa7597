"""Means and variances over runs of tokens: a cluster's centroid, a block's mean key. One program
a run.

Tokens are read in the order of their clusters, so no two programs write to one address: nothing is
atomic, and the same input gives the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from svoo.core.layout import dense_rows, plain
from svoo.kernels.triton.launch import Launch, padded

ROWS = 32


def update_centroids(tokens: Tensor, order: Tensor, sizes: Tensor, old: Tensor) -> Tensor:
    """Return the mean of each run of tokens `[B, H, N, D]`, in the dtype of `old` `[B, H, C, D]`;
    an empty one keeps its `old`."""
    means = old.clone(memory_format=torch.contiguous_format)
    fill_means(tokens, order, sizes, means)
    return means


def fill_means(tokens: Tensor, order: Tensor | None, sizes: Tensor, means: Tensor) -> None:
    """Write the mean of each run of tokens `[B, H, N, D]` into means `[B, H, C, D]` (contiguous).

    A run is the next `sizes[b, h, c]` tokens in `order` `[B, H, N]` (None: as they are); where it
    is empty, means stay as they were.
    """
    plan_launch(tokens, order, sizes, means).run()


def find_moments(tokens: Tensor, order: Tensor | None, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance per axis of each run of tokens, float32 `[B, H, C, D]`;
    zeros where it is empty."""
    shape = (*sizes.shape, tokens.shape[3])
    means, variances = (
        torch.zeros(shape, dtype=torch.float32, device=tokens.device) for _ in range(2)
    )
    plan_launch(tokens, order, sizes, means, variances).run()
    return means, variances


def plan_launch(
    tokens: Tensor,
    order: Tensor | None,
    sizes: Tensor,
    means: Tensor,
    variances: Tensor | None = None,
) -> Launch:
    """Return the launch of `fill_means`, or of `find_moments`."""
    batch, heads, count, size = tokens.shape
    tokens = dense_rows(tokens)
    arguments = {
        "tokens": tokens,
        "order": None if order is None else plain(order),
        "ends": sizes.cumsum(dim=-1),
        "sizes": plain(sizes),
        "means": means,
        "variances": variances,
        "batch_stride": tokens.stride(0),
        "head_stride": tokens.stride(1),
        "token_stride": tokens.stride(2),
        "heads": heads,
        "count": count,
        "SIZE": size,
        "WIDTH": padded(size),
        "ROWS": ROWS,
    }
    return Launch(_means, (sizes.shape[2], batch * heads), arguments, warps=4, stages=3)


@triton.jit
def _means(
    tokens,
    order,
    ends,
    sizes,
    means,
    variances,
    batch_stride,
    head_stride,
    token_stride,
    heads,
    count,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    pair = tl.program_id(1).to(tl.int64)  # 64 bits: the offsets below can pass 2^31
    run = pair * tl.num_programs(0) + tl.program_id(0)
    size = tl.load(sizes + run)
    if size == 0:
        return
    start = tl.load(ends + run) - size
    numbers = tl.arange(0, WIDTH)
    tokens += pair // heads * batch_stride + pair % heads * head_stride
    own_order = None if order is None else order + pair * count
    nothing = tl.zeros([WIDTH], tl.float32)
    mean = _add(tokens, own_order, start, size, token_stride, nothing, 1, SIZE, WIDTH, ROWS)
    cells = run * SIZE + numbers
    tl.store(means + cells, mean.to(means.dtype.element_ty), mask=numbers < SIZE)
    if variances is not None:  # first the mean: squares alone would cancel
        spread = _add(tokens, own_order, start, size, token_stride, mean, 2, SIZE, WIDTH, ROWS)
        tl.store(variances + cells, spread, mask=numbers < SIZE)


@triton.jit
def _add(
    tokens,
    order,
    start,
    size,
    token_stride,
    middle,
    POWER: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Return the mean of (token - middle)^POWER over a run, `[WIDTH]`."""
    numbers = tl.arange(0, WIDTH)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for first in range(0, size, ROWS):
        steps = first + tl.arange(0, ROWS)
        inside = steps < size
        rows = start + steps
        if order is not None:
            rows = tl.load(order + rows, mask=inside, other=0)
        some = inside[:, None] & (numbers < SIZE)[None, :]
        read = tl.load(
            tokens + rows[:, None] * token_stride + numbers[None, :], mask=some, other=0.0
        ).to(tl.float32)
        if POWER == 2:
            read = tl.where(some, read - middle[None, :], 0.0)
            read = read * read
        total += read
    return tl.sum(total, axis=0) / size.to(tl.float32)
