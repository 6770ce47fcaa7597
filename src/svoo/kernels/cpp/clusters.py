"""The clustering kernels as functions of tensors, as those of `kernels.triton` are."""

from __future__ import annotations

import torch
from torch import Tensor

from svoo.core.layout import dense_rows, plain
from svoo.errors import ShapeError
from svoo.kernels.cpp.bindings import Assignment, Centroids, point_to, run_kernel

_ROWS = 8  # the kernel multiplies at most so many weights at a time


def assign(tokens: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return argmax_j <token, weights_j> + bias_j, int64 `[B, H, N]`; the first of equals wins.

    tokens `[B, H, N, D]`; weights `[B, H, C, D]` and bias `[B, H, C]` in float32.
    """
    clusters, device = weights.shape[2], tokens.device
    if bias is None:
        bias = weights.new_zeros(weights.shape[:3])
    # Weights that fill up the last piece repeat the last one, so that none of them comes first.
    rows = torch.arange(-(-clusters // _ROWS) * _ROWS, device=device).clamp(max=clusters - 1)
    weights, bias = (each.float().index_select(2, rows) for each in (weights, bias))
    if weights.shape[-1] % 2:  # the kernel takes two numbers of a row at a time
        weights = torch.nn.functional.pad(weights, (0, 1))
    tokens = dense_rows(tokens)
    labels = torch.empty(tokens.shape[:3], dtype=torch.int64, device=device)
    pointers = (tensor.data_ptr() for tensor in (weights, bias, labels))
    call = Assignment(point_to(tokens), *pointers, *tokens.shape, len(rows))
    run_kernel("assign", tokens.dtype, call)
    return labels


def update_centroids(tokens: Tensor, labels: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means of the tokens `[B, H, N, D]` with each label, float32 `[B, H, C, D]`, and
    their numbers, int64 `[B, H, C]`; an empty cluster keeps its centroid."""
    tokens, labels = dense_rows(tokens), plain(labels.long())
    clusters = centroids.shape[2]
    lowest, highest = (int(extreme) for extreme in labels.aminmax())
    if labels.shape != tokens.shape[:3] or not 0 <= lowest <= highest < clusters:
        raise ShapeError(
            f"labels must be {list(tokens.shape[:3])} from 0 to {clusters - 1}, got "
            f"{list(labels.shape)} from {lowest} to {highest}"
        )
    centroids = centroids.float().clone(memory_format=torch.contiguous_format)
    sizes = torch.empty(centroids.shape[:3], dtype=torch.int64, device=tokens.device)
    pointers = (tensor.data_ptr() for tensor in (labels, centroids, sizes))
    call = Centroids(point_to(tokens), *pointers, *tokens.shape, clusters)
    run_kernel("update_centroids", tokens.dtype, call)
    return centroids, sizes
