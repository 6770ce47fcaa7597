"""The axes that tokens vary most on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from svoo.core.eigen import eigen

_ROUNDS = 8
_LEAST = 2e-6  # of the longest column's square: less is rounding
_TINY = 1e-30  # where all columns are 0


def main_axes(moments: Tensor, count: int) -> Tensor:
    """Return the `count` main axes of second moments `[..., D, D]`, orthonormal `[..., D, count]`,
    the widest first; all D if there are fewer.

    Eigenvectors on the CPU. Elsewhere torch finds those one matrix after another and waits for the
    device, so there they are approached by `iterate_axes`.
    """
    count = min(count, moments.shape[-1])
    if moments.device.type == "cpu":
        return eigen(moments).vectors.flip(-1)[..., :count]  # they rise
    return iterate_axes(moments, count)


def iterate_axes(moments: Tensor, count: int) -> Tensor:
    """Approach the main axes by a few rounds of orthogonal iteration; waits for no device.

    The first axes span nearly what the first eigenvectors do, turned a little among themselves
    where these are alike.
    """
    size = moments.shape[-1]
    entries = torch.arange(size, device=moments.device, dtype=moments.dtype)
    waves = torch.outer(entries + 0.5, torch.arange(count, device=moments.device) + 1.0)
    axes = (waves * (math.pi / size)).cos().expand(*moments.shape[:-2], size, count)
    traces = moments.diagonal(dim1=-2, dim2=-1).sum(dim=-1)[..., None, None]
    moments = moments / traces.where(traces > 0, 1)  # squares of larger ones might overflow
    for _ in range(_ROUNDS):
        axes = _orthonormal(moments @ axes)
    return _orthonormal(_orthonormal(axes))  # again: at first rounding was large


def _orthonormal(columns: Tensor) -> Tensor:
    """Return orthonormal columns that span those of `[..., D, C]`; small ones may stay shorter."""
    products = columns.mT @ columns
    diagonal = products.diagonal(dim1=-2, dim2=-1)
    diagonal += _LEAST * diagonal.amax(dim=-1, keepdim=True) + _TINY
    root, _ = torch.linalg.cholesky_ex(products)
    found: Tensor = torch.linalg.solve_triangular(root, columns.mT, upper=False).mT
    return found
