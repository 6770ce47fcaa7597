"""Clusters of equal size, by splitting again and again along the axis of largest variance; and the
metrics that a side of attention sees the other in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from svoo.core.clustering import choose_implementation
from svoo.core.eigen import eigen
from svoo.core.far_field import find_moments
from svoo.core.validate import accumulation_dtype, inference_only

_POSITION_BITS, _VALUE_BITS = 18, 32  # of an integer that holds group, value and position


@dataclass(frozen=True)
class Balanced:
    """Equal-size clusters: order `[B, H, N]` (permuted[i] = tokens[order[i]]) and the size of each
    cluster in that order, the same for all heads: all alike, the last one perhaps smaller."""

    order: Tensor
    sizes: tuple[int, ...]

    def labels(self) -> Tensor:
        """Return the cluster of every token, int64 `[B, H, N]`."""
        sizes = torch.tensor(self.sizes, device=self.order.device)
        clusters = torch.arange(len(sizes), device=sizes.device)
        in_order = clusters.repeat_interleave(sizes, output_size=self.order.shape[2])
        return torch.empty_like(self.order).scatter_(2, self.order, in_order.expand_as(self.order))


def split_sizes(size: int, unit: int) -> tuple[int, int]:
    """Return the sizes of both parts of more than `unit` tokens: the first is the multiple of
    `unit` nearest to half, the smaller of two."""
    blocks = -(-size // unit)
    lower = max(1, min(blocks - 1, -(-(size - unit) // (2 * unit))))
    return lower * unit, size - lower * unit


@inference_only
def split_evenly(
    points: Tensor,
    size: int,
    *,
    sample: int | None = None,
    generator: torch.Generator | None = None,
    turn: bool = True,
) -> Balanced:
    """Group points `[B, H, N, D]` into clusters of `size`, the last one perhaps smaller.

    The points are turned onto their principal axes, unless `turn=False` says that they are. Then
    every group of more than `size` is cut along the axis where it varies most; equal numbers keep
    their order. `sample` estimates variances from so many random points of a group (with
    replacement, by `generator`), None takes all. The sizes depend on N alone, so nothing but the
    turning waits for the device.
    """
    batch, heads, count, width = points.shape
    axes = (turn_to_axes(points) if turn else points).flatten(0, 1)  # [P, N, D]
    order = torch.arange(count, device=points.device).expand(len(axes), count)
    groups = [count]
    while max(groups) > size:
        variance = _variances(axes, order, groups, sample, generator)
        widest = variance.argmax(dim=-1)  # [P, groups]
        group_of = _groups_of_positions(groups, points.device)
        column = widest.index_select(1, group_of)
        values = axes.flatten(1).gather(1, order * width + column)
        order = order.gather(1, _sort_in_groups(values, group_of, len(groups)))
        parts = (split_sizes(group, size) if group > size else (group,) for group in groups)
        groups = [part for pair in parts for part in pair]
    return Balanced(order.reshape(batch, heads, count), tuple(groups))


def turn_to_axes(points: Tensor) -> Tensor:
    """Return points `[B, H, N, D]`, centred and turned onto the principal axes of each head, in
    float32 or wider.

    An axis points to where its largest component is positive: what LAPACK gives may turn round
    with the last bit of a token, and the halves of a split would change places.
    """
    wide = points.to(accumulation_dtype(points))
    centred = wide - wide.mean(dim=2, keepdim=True)
    axes = eigen(centred.transpose(2, 3) @ centred).vectors
    largest = axes.gather(2, axes.abs().argmax(dim=2, keepdim=True))
    return centred @ (axes * largest.sign())


def square_root(moment: Tensor) -> Tensor:
    """Return the symmetric square root of second moments `[B, H, D, D]`; negative eigenvalues,
    which are rounding, count as 0."""
    values, vectors = eigen(moment)
    root: Tensor = vectors * values.clamp(min=0).sqrt().unsqueeze(2) @ vectors.transpose(2, 3)
    return root


def _groups_of_positions(groups: list[int], device: torch.device) -> Tensor:
    numbers = np.repeat(np.arange(len(groups)), groups)
    return torch.from_numpy(numbers).to(device, non_blocking=True)


def _variances(
    axes: Tensor,
    order: Tensor,
    groups: list[int],
    sample: int | None,
    generator: torch.Generator | None,
) -> Tensor:
    """Return the variance of every group along every axis, `[P, groups, D]`."""
    pairs, count, width = axes.shape
    if sample is None:
        sizes = torch.tensor(groups).to(axes.device, non_blocking=True).expand(1, pairs, -1)
        by = choose_implementation(axes, "auto")
        return find_moments(axes.unsqueeze(0), order.unsqueeze(0), sizes, by=by).variance[0]
    heads = count * torch.arange(pairs, device=axes.device).unsqueeze(-1)
    device = "cpu" if generator is None else generator.device
    drawn = torch.rand(
        len(groups), sample, generator=generator, dtype=torch.float64, device=device
    ).cpu()
    sizes = torch.tensor(groups, device="cpu").unsqueeze(-1)
    starts = sizes.cumsum(dim=0) - sizes
    picked = (starts + (drawn * sizes).long()).flatten().to(axes.device, non_blocking=True)
    rows = (order.index_select(1, picked) + heads).flatten()
    found = axes.flatten(0, 1).index_select(0, rows)
    return _variance(found.view(pairs, len(groups), sample, width))


def _variance(points: Tensor) -> Tensor:
    """Return the variance of points `[..., N, D]` along every axis, `[..., D]`; faster than
    torch's."""
    mean = points.mean(dim=-2)
    return (points - mean.unsqueeze(-2)).square_().mean(dim=-2)


def _sort_in_groups(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return the order `[P, N]` of rising values inside every group of positions `[N]`; equal ones
    stay in their order."""
    group_bits = 63 - _POSITION_BITS - _VALUE_BITS
    small = values.shape[1] < 1 << _POSITION_BITS and count < 1 << group_bits
    if values.device.type == "cpu" and values.dtype == torch.float32 and small:
        # One whole number holds all three, as in `core.selection`: numpy sorts those fast.
        bits = (values + 0.0).view(torch.int32)
        rank = (bits ^ (bits >> 31 & 0x7FFFFFFF)).long() + (1 << 31)
        positions = torch.arange(values.shape[1])
        packed = (groups << _VALUE_BITS + _POSITION_BITS) + (rank << _POSITION_BITS) + positions
        mixed = torch.from_numpy(np.sort(packed.numpy(), axis=-1))
        return mixed & ((1 << _POSITION_BITS) - 1)
    by_value = values.argsort(dim=-1, stable=True)
    group = groups.expand_as(by_value).gather(1, by_value)
    return by_value.gather(1, group.argsort(dim=-1, stable=True))
