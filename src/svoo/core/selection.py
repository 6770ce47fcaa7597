"""Which blocks to compute: coarse attention between centroids, cut by mass and by budget."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from svoo.core.clustering import CoClusters, Implementation, choose_implementation
from svoo.core.validate import check_budgets, check_mass, default_scale, inference_only
from svoo.kernels.triton import why_no_kernels

WHOLE = 1 << 40
"""What `whole_shares` makes of 1."""
_BITS, _MASS_BITS = 28, 20  # with 16,384 blocks a product has 62

BudgetUnit = Literal["tokens", "clusters", "whole clusters"]
"""What a budget is a fraction of: key tokens; key clusters, rounded up or down."""


@inference_only
def coarse_mass(clusters: CoClusters, *, scale: float | None = None) -> Tensor:
    """Return the softmax over key clusters that each query centroid sees, weighted by cluster
    sizes.

    `[B, H, Cq, Ck]` in the centroids' dtype; an empty key cluster has mass 0.
    """
    factor = default_scale(clusters.query.centroids, scale)
    logits = clusters.query.centroids @ clusters.key.centroids.transpose(2, 3) * factor
    return (logits + clusters.key.sizes.to(logits.dtype).log().unsqueeze(2)).softmax(dim=-1)


@inference_only
def select_blocks(
    clusters: CoClusters,
    budgets: Tensor | None = None,
    *,
    mass: float = 0.9,
    theta: float = 0.1,
    scale: float | None = None,
    unit: BudgetUnit = "tokens",
    check: bool = True,
    implementation: Implementation = "auto",
) -> Tensor:
    """Choose the key blocks that each query block attends to: bool `[B, H, Cq, Ck]`.

    A query block takes key blocks in the order of their `coarse_mass`, largest first. Two numbers
    say how many: the fewest that together reach `mass` (1: all that are not empty), and those that
    the head's budget pays for. `budgets` are `[H]` or `[B, H]`,
    fractions of key tokens or clusters as `unit` says (see `SVOOConfig.budget_unit`). A head whose
    budget is above `theta` takes the smaller number, any other head the larger. Without budgets
    mass alone decides. At least one block is kept, an empty one never.

    `implementation`: "triton" finds the threshold without sorting, all others sort.
    """
    check_mass(mass)
    coarse = coarse_mass(clusters, scale=scale)
    sizes = clusters.key.sizes.unsqueeze(2)
    if budgets is not None:
        check_budgets(budgets, *coarse.shape[:2], values=check)
    if _in_triton(clusters.query.centroids, coarse, implementation):
        return _select_in_triton(coarse, clusters.key.sizes, budgets, mass, theta, unit)
    order = falling_order(coarse.masked_fill(sizes == 0, -1.0))
    non_empty = (sizes > 0).sum(dim=-1)  # [B, H, 1]
    if mass < 1:
        reached = whole_shares(coarse).gather(-1, order).cumsum(dim=-1)
        count = ((reached < math.ceil(mass * WHOLE)).sum(dim=-1) + 1).minimum(non_empty)
    else:
        count = non_empty.expand(order.shape[:3])
    if budgets is not None:
        budget = budgets.reshape(-1, coarse.shape[1], 1)
        above = budget > theta  # in the budgets' own precision: float32's 0.1 is not above 0.1
        limit = _limit(budget.to(coarse), sizes, unit)
        allowed = _allowed(limit, sizes, order, unit).clamp(min=1).minimum(non_empty)
        count = torch.where(above, count.minimum(allowed), count.maximum(allowed))
    ranks = torch.arange(order.shape[-1], device=order.device)
    return torch.zeros_like(order, dtype=torch.bool).scatter_(
        -1, order, ranks < count.unsqueeze(-1)
    )


def count_kept(sparsity: float, blocks: int) -> int:
    """Return how many of so many blocks are kept at a sparsity: rounded up, at least one."""
    return max(1, math.ceil((1 - sparsity) * blocks - 1e-9))


def keep_mass(weights: Tensor, mass: float, least: int = 1) -> Tensor:
    """Return the largest of weights `[..., C]` while the sum before an entry is below `mass` of
    the row's, and at least so many, as bool `[..., C]`; of equal ones the first."""
    # Whole numbers, see `whole_shares`, after a factor that is a power of two: it rounds nothing.
    _, exponent = torch.frexp(weights.amax(dim=-1, keepdim=True).float())
    wide = weights.to(torch.promote_types(weights.dtype, torch.float32))
    factor = torch.ldexp(torch.ones_like(exponent, dtype=wide.dtype), _BITS - exponent)
    enough = math.ceil(mass * (1 << _MASS_BITS))
    if needs_no_sorting(weights):
        from svoo.kernels.triton.select import keep_best

        return keep_best(weights, least, factor, enough, enough_bits=_MASS_BITS)
    order = falling_order(weights)
    whole = (wide * factor).round().long()
    shares = whole.gather(-1, order)
    before = shares.cumsum(dim=-1) - shares
    ranks = torch.arange(order.shape[-1], device=order.device)
    limit = enough * whole.sum(dim=-1, keepdim=True)
    first = (before << _MASS_BITS < limit) | (ranks < least)
    return torch.zeros_like(weights, dtype=torch.bool).scatter_(-1, order, first)


def keep_top(scores: Tensor, count: int | Tensor) -> Tensor:
    """Return which blocks are among the `count` best of their row of scores `[..., C]`; of equal
    ones the first. `count` is one for all, or one per row `[..., 1]`."""
    if needs_no_sorting(scores):
        from svoo.kernels.triton.select import keep_best

        return keep_best(scores, count)
    order = falling_order(scores)
    chosen = torch.arange(scores.shape[-1], device=scores.device) < count
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, chosen.expand_as(order))


def needs_no_sorting(scores: Tensor) -> bool:
    """Return whether a kernel finds the best of scores `[..., C]` by a threshold."""
    if scores.dtype != torch.float32 or why_no_kernels(scores[..., :1]) is not None:
        return False
    from svoo.kernels.triton.select import MOST_BLOCKS

    return scores.shape[-1] <= MOST_BLOCKS


def least_of_best(values: Tensor, count: int) -> Tensor:
    """Return the `count`-th largest of values `[..., C]`, `[..., 1]`."""
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64):
        return values.topk(count, dim=-1).values[..., -1:]
    rank = values.shape[-1] - count  # numpy finds it with vector instructions
    return torch.from_numpy(np.partition(values.numpy(), rank, axis=-1))[..., rank, None]


def sort_falling(values: Tensor) -> Tensor:
    """Return values `[..., C]` in falling order along the last axis."""
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64):
        return values.sort(dim=-1, descending=True).values
    return torch.from_numpy(np.sort(values.numpy(), axis=-1)).flip(-1)  # with vector instructions


def falling_order(ranking: Tensor) -> Tensor:
    """Return the order of falling scores along the last axis; equal ones stay in their order."""
    blocks = ranking.shape[-1]
    if ranking.device.type != "cpu" or ranking.dtype != torch.float32 or blocks > 2**16:
        return ranking.argsort(dim=-1, descending=True, stable=True)
    # numpy sorts integers with vector instructions. So each score becomes one integer: its bits,
    # and below them its index, by which equal scores keep their order. The bits of float32 numbers
    # rank as the numbers do, once those of negative ones are inverted.
    ranking = ranking.nan_to_num(torch.inf, torch.inf, -torch.inf) + 0.0  # minus zero is zero
    bits = ranking.view(torch.int32)
    rank = (bits ^ (bits >> 31 & 0x7FFFFFFF)).long()
    indices = torch.arange(blocks, device=ranking.device)
    return torch.from_numpy(np.sort((indices - (rank << 16)).numpy(), axis=-1)) & 0xFFFF


def whole_shares(weights: Tensor) -> Tensor:
    """Return weights in [0, 1] as whole numbers: their sums are the same in any order, on every
    device, and allowed where torch is told to be deterministic."""
    return (weights * WHOLE).round().long()


def _limit(budget: Tensor, sizes: Tensor, unit: BudgetUnit) -> Tensor:
    """Return the tokens, or the key clusters, that budgets `[B or 1, H, 1]` pay for, int64; sizes
    are `[B, H, 1, Ck]`."""
    if unit == "tokens":
        return (budget * sizes.sum(dim=-1) + 1e-3).floor().long()
    share = budget * sizes.shape[-1]
    return ((share - 1e-4).ceil() if unit == "clusters" else (share + 1e-4).floor()).long()


def _allowed(limit: Tensor, sizes: Tensor, order: Tensor, unit: BudgetUnit) -> Tensor:
    """Return how many of the first key clusters in `order` a limit allows, `[B, H, Cq]`."""
    if unit != "tokens":
        return limit.expand(order.shape[:3])
    tokens = sizes.expand(order.shape).gather(-1, order).cumsum(dim=-1)
    return (tokens <= limit.unsqueeze(-1)).sum(dim=-1)


def _in_triton(centroids: Tensor, coarse: Tensor, implementation: Implementation) -> bool:
    """Return whether the kernel selects; asking for it by name where it cannot is refused."""
    if implementation == "auto":
        if why_no_kernels(centroids) is not None:
            return False
    elif choose_implementation(centroids, implementation) != "triton":
        return False
    from svoo.kernels.triton.select import MOST_BLOCKS

    return coarse.dtype == torch.float32 and coarse.shape[3] <= MOST_BLOCKS


def _select_in_triton(
    coarse: Tensor,
    sizes: Tensor,
    budgets: Tensor | None,
    mass: float,
    theta: float,
    unit: BudgetUnit,
) -> Tensor:
    """Do what `select_blocks` says without sorting; sizes are `[B, H, Ck]`."""
    from svoo.kernels.triton.select import keep_largest

    enough = math.ceil(mass * WHOLE) if mass < 1 else 1 << 62  # more than there is
    if budgets is None:
        return keep_largest(coarse, sizes, enough, WHOLE)
    budget = budgets.reshape(-1, coarse.shape[1], 1)
    limit = _limit(budget.to(coarse), sizes.unsqueeze(2), unit).expand(*coarse.shape[:2], 1)
    above = (budget > theta).expand(limit.shape)
    return keep_largest(coarse, sizes, enough, WHOLE, limit, above, count_tokens=unit == "tokens")
