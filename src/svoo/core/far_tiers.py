"""Which blocks a query block keeps, gives a term of their own, or lets share one: the far field's
three tiers.

`core.far_field` has the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from svoo.core.far_view import View
from svoo.core.terms import GroupTerms
from svoo.kernels.cpp import clusters as cpp_clusters
from svoo.kernels.cpp import far_field as cpp
from svoo.kernels.cpp import why_no_cpp

_LLOYD_STEPS = 4


@dataclass(frozen=True, eq=False)
class Blocks:
    """Query or key blocks of a call: mean and variance along each axis `[B, H, C, D]`, sizes
    `[B, H, C]`."""

    mean: Tensor
    variance: Tensor
    sizes: Tensor


@dataclass(frozen=True, eq=False)
class Tiers:
    """Blocks that are kept and blocks with a term of their own, bool `[B, H, Cq, Ck]`; terms that
    the others share."""

    keep: Tensor
    middle: Tensor
    groups: GroupTerms | None


@dataclass(frozen=True, eq=False)
class _Groups:
    """Groups of key blocks: labels `[B, H, Ck]`; (c_j - c_g)^2 `[B, H, Ck, D]`; |v_j - v_g| and
    |v_j| `[B, H, Ck]`."""

    count: int
    labels: Tensor
    key_squares: Tensor
    value_distance: Tensor
    value_length: Tensor


def choose_tiers(
    view: View,
    query: Blocks,
    key: Blocks,
    value: Blocks,
    *,
    tolerance: float,
    weight: Tensor,
    groups: int,
    scale: float,
    token: torch.dtype,
) -> Tiers:
    """Return the tiers of every query block; query and key means are rounded to the dtype `token`.
    weight `[H]`; groups=0: no third tier. By the C++ kernel where it runs."""
    spread = query.variance @ key.variance.transpose(2, 3) * scale**2
    deviation = value.variance.sum(dim=-1).sqrt()
    found = _find_groups(key, value.mean, groups) if groups else None
    group_spread = None
    if found is not None:
        group_spread = query.variance @ found.key_squares.transpose(2, 3) * scale**2
    if view.value.dtype == token and why_no_cpp(view.value) is None:
        shared: tuple[Tensor, ...] = ()
        if found is not None and group_spread is not None:
            shared = (group_spread, found.labels, found.value_length, found.value_distance)
        keep, middle, *made = cpp.choose_tiers(
            (view.logit, view.log_sum, spread, view.length, deviation, key.sizes),
            (query.mean, key.mean, value.mean),
            weight,
            shared,
            min(groups, key.sizes.shape[2]),
            scale=scale,
            tolerance=tolerance,
            token=token,
        )
        return Tiers(keep, middle, GroupTerms(*made) if groups else None)
    error = expected_error(view, spread, deviation)
    keep = choose(error, key.sizes, tolerance, weight)
    middle = ~keep & (key.sizes > 0).unsqueeze(2)
    if found is None or group_spread is None:
        return Tiers(keep, middle, None)
    loss = group_spread.sqrt() * found.value_distance.unsqueeze(2)
    loss = view.share * (loss + group_spread / 2 * found.value_length.unsqueeze(2))
    joins = middle & (weight.view(-1, 1, 1) * loss < tolerance)
    terms = _group_terms(view, joins, found, query.mean, key.mean, value.mean, scale, token)
    return Tiers(keep, middle & ~joins, terms)


def expected_error(view: View, spread: Tensor, deviation: Tensor) -> Tensor:
    """Return e = w (sqrt(s) sd + s / 2 |V|), `[B, H, Cq, Ck]`: the error of the output if a block
    is left to its term. spread s `[B, H, Cq, Ck]`, deviation sd `[B, H, Ck]`."""
    return view.share * (spread.sqrt() * deviation.unsqueeze(2) + spread / 2 * view.length)


def choose(error: Tensor, key_sizes: Tensor, tolerance: float, weight: Tensor) -> Tensor:
    """Return which blocks to compute, bool `[B, H, Cq, Ck]`: those whose weighted error per token
    is above the tolerance, and the best of every row. weight `[H]`."""
    sizes = key_sizes.unsqueeze(2)
    worth = weight.view(-1, 1, 1) * error / sizes.clamp(min=1)
    worth = worth.masked_fill(sizes == 0, -1.0)
    keep = worth > tolerance
    return keep.scatter_(3, worth.argmax(dim=-1, keepdim=True), value=True)


def group_labels(key_centroids: Tensor, key_sizes: Tensor, groups: int) -> Tensor:
    """Return the group of every key block, `[B, H, Ck]`: Lloyd steps on the centroids `[B, H, Ck,
    D]`, weighted by size, from blocks evenly spread over the list."""
    blocks = key_centroids.shape[2]
    groups = min(groups, blocks)
    picked = (torch.arange(groups, device=key_centroids.device) * blocks) // groups
    centres = key_centroids[:, :, picked]
    weights = key_sizes.to(key_centroids.dtype).unsqueeze(-1)
    labels = key_sizes
    for step in range(_LLOYD_STEPS):
        labels = _nearest(key_centroids, centres)
        if step + 1 < _LLOYD_STEPS:
            centres = _group_means(key_centroids, labels, weights, centres)
    return labels


def _nearest(rows: Tensor, centres: Tensor) -> Tensor:
    """Return the nearest of centres `[B, H, G, D]` to each of rows `[B, H, Ck, D]`, `[B, H,
    Ck]`."""
    bias = -0.5 * centres.square().sum(dim=-1)
    if why_no_cpp(rows) is None:
        return cpp_clusters.assign(rows, centres, bias)
    return (rows @ centres.transpose(2, 3) + bias.unsqueeze(2)).argmax(dim=-1)


def _group_means(rows: Tensor, labels: Tensor, weights: Tensor, before: Tensor) -> Tensor:
    """Return weighted means of rows `[B, H, Ck, D]` by label, `[B, H, G, D]`; those of an empty
    group stay as before."""
    index = labels.unsqueeze(-1).expand_as(rows)
    sums = torch.zeros_like(before).scatter_add_(2, index, rows * weights)
    total = torch.zeros_like(before[..., :1]).scatter_add_(2, labels.unsqueeze(-1), weights)
    return torch.where(total > 0, sums / total.clamp(min=1e-30), before)


def _find_groups(key: Blocks, value_means: Tensor, groups: int) -> _Groups:
    count = min(groups, key.sizes.shape[2])
    labels = group_labels(key.mean, key.sizes, groups)
    weights = key.sizes.to(key.mean.dtype).unsqueeze(-1)
    zeros = torch.zeros_like(key.mean[:, :, :count])
    index = labels.unsqueeze(-1).expand_as(key.mean)
    from_key = key.mean - _group_means(key.mean, labels, weights, zeros).gather(2, index)
    from_value = value_means - _group_means(value_means, labels, weights, zeros).gather(2, index)
    distance: Tensor = from_value.norm(dim=-1)
    length: Tensor = value_means.norm(dim=-1)
    return _Groups(count, labels, from_key.square(), distance, length)


def _group_terms(
    view: View,
    joins: Tensor,
    groups: _Groups,
    query_means: Tensor,
    key_means: Tensor,
    value_means: Tensor,
    scale: float,
    token: torch.dtype,
) -> GroupTerms:
    """Return each group's one term for blocks `joins` `[B, H, Cq, Ck]`: key and value are means
    weighted by w and rounded to the dtype `token`, the bias is such that the query centroid sees
    what it saw of its blocks together."""
    taken = torch.where(joins, view.share, 0.0)
    terms = [
        _group_term(
            view, taken, joins & (groups.labels == g).unsqueeze(2), key_means, value_means, token
        )
        for g in range(groups.count)
    ]
    key, value, total = (torch.stack(parts, dim=3) for parts in zip(*terms, strict=True))
    own = (query_means.unsqueeze(3) * key.to(total)).sum(dim=-1) * scale
    return GroupTerms((total - own).float(), key, value)


def _group_term(
    view: View,
    taken: Tensor,
    members: Tensor,
    key_means: Tensor,
    value_means: Tensor,
    token: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return one group's key and value `[B, H, Cq, D]` in the dtype `token`, and the log-sum-exp
    `[B, H, Cq]` of its members `[B, H, Cq, Ck]`; `taken` are their shares."""
    part = torch.where(members, taken, 0.0)
    part = part / part.sum(dim=-1, keepdim=True).clamp(min=1e-30)
    total = (view.logit + view.log_sum).masked_fill(~members, -torch.inf).logsumexp(dim=-1)
    return (part @ key_means).to(token), (part @ value_means).to(token), total
