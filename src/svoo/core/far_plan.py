"""The plan of the far field: three tiers of blocks for each query block, by one tolerance."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from svoo.core.clustering import Implementation, choose_implementation
from svoo.core.far_field import (
    VALUE_BYTES,
    FarField,
    Moments,
    expected_error,
    find_moments,
    keep_by_error,
    see_blocks,
    term_weights,
)
from svoo.core.far_groups import (
    KeyGroups,
    group_keys,
    group_terms,
    grouping_error,
)
from svoo.core.layout import VideoLayout
from svoo.core.plan import BlockPlan, add_text
from svoo.core.sorting import SortedLabels
from svoo.core.terms import FarTerms, GroupTerms
from svoo.core.validate import default_scale, inference_only
from svoo.errors import PlanError
from svoo.kernels.cpp import far_field as cpp

_MOST = 4  # times VALUE_BYTES, that one head's terms may take


@dataclass(frozen=True, eq=False)
class Tiers:
    """Blocks that are kept, and blocks with a term of their own, bool `[B, H, Cq, Ck]`; terms that
    the others share."""

    keep: Tensor
    middle: Tensor
    groups: GroupTerms | None


def choose_tiers(
    seen: FarField,
    query: Moments,
    key: Moments,
    value: Moments,
    *,
    tolerance: float,
    weight: Tensor,
    groups: int,
    scale: float,
    by: Implementation,
) -> Tiers:
    """Return the tiers of every query block, as `plan_far_field` says; weight `[H]`, groups=0: no
    third tier."""
    token = seen.value.dtype
    query_mean, key_mean = query.mean.to(token), key.mean.to(token)
    key_groups = group_keys(key, value, groups, by=by) if groups else None
    if by == "cpp":
        return _choose_in_cpp(
            seen, query, key, value, key_groups, tolerance=tolerance, weight=weight, scale=scale
        )
    shares = term_weights(query_mean, key_mean, seen.bias, scale=scale)
    error = expected_error(shares.weights, query, key, value, seen.length, scale=scale)
    keep = keep_by_error(error, key.sizes, tolerance, weight)
    middle = ~keep & (key.sizes > 0).unsqueeze(2)
    if key_groups is None:
        return Tiers(keep, middle, None)
    rounded = replace(key, mean=key_mean.to(key.mean))
    loss = grouping_error(shares.weights, query, rounded, value, key_groups, scale=scale)
    far = middle & (loss * weight.to(loss).view(-1, 1, 1) < tolerance)
    terms = group_terms(far, shares, query_mean, key_mean, value, key_groups, scale=scale)
    return Tiers(keep, middle & ~far, terms)


def _choose_in_cpp(
    seen: FarField,
    query: Moments,
    key: Moments,
    value: Moments,
    groups: KeyGroups | None,
    *,
    tolerance: float,
    weight: Tensor,
    scale: float,
) -> Tiers:
    token = seen.value.dtype
    keep, middle, *terms = cpp.choose_tiers(
        (seen.bias, seen.length),
        (query.mean.to(token), key.mean.to(token), value.mean),
        (query.variance, key.variance, value.variance),
        key.sizes,
        weight,
        None if groups is None else (groups.labels, groups.key, groups.value),
        scale=scale,
        tolerance=tolerance,
        token=token,
    )
    return Tiers(keep, middle, None if groups is None else GroupTerms(*terms))


@inference_only
def plan_far_field(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_side: SortedLabels,
    key_side: SortedLabels,
    *,
    tolerance: float,
    weight: Tensor | None = None,
    groups: int = 8,
    scale: float | None = None,
    layout: VideoLayout | None = None,
    implementation: Implementation = "auto",
) -> BlockPlan:
    """Return the plan that keeps what is expected to err by more than the tolerance for each key
    token, and gives the rest terms.

    query `[B, H, N, D]`, key, value `[B, H, M, D]`; the sides are the labels of the *video*
    tokens (`sort_labels`); weight `[H]` is what a head's error counts (norm of its slice of the
    output projection over the root of the head size; None: 1). A block is kept where weight * e_ij
    / size_j > tolerance (`expected_error`), joins the term of its group where weight *
    `grouping_error` < tolerance, and has a term of its own else; groups=0: no third tier. Text and
    padding of the layout are outside of it. V takes `heads_per_group`'s memory: give it groups of
    heads. Waits for no device.
    """
    factor = default_scale(query, scale)
    if layout is not None:
        query, key, value = (layout.video_part(tokens) for tokens in (query, key, value))
    by = choose_implementation(query, implementation)
    weight = query.new_ones(query.shape[1], dtype=torch.float32) if weight is None else weight
    queries = find_moments(query, *query_side, by=by)
    keys = find_moments(key, *key_side, by=by)
    values = find_moments(value, *key_side, by=by)
    # Rounded before the bias is made: backends multiply rounded means, and both have to cancel.
    query_mean, key_mean = queries.mean.to(query.dtype), keys.mean.to(query.dtype)
    seen = see_blocks(query_mean, key_mean, key, value, *key_side, scale=factor, by=by)
    tiers = choose_tiers(
        seen,
        queries,
        keys,
        values,
        tolerance=tolerance,
        weight=weight,
        groups=groups,
        scale=factor,
        by=by,
    )
    terms = FarTerms(tiers.middle, seen.bias.float(), seen.value, tiers.groups)
    orders, sizes = zip(query_side, key_side, strict=True)
    plan = BlockPlan(*orders, *sizes, tiers.keep, terms, check=False)
    return plan if layout is None else add_text(plan, layout, check=False)


@inference_only
def add_far_terms(
    plan: BlockPlan,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    implementation: Implementation = "auto",
) -> BlockPlan:
    """Return any plan of the video tokens query `[B, H, N, D]`, key, value `[B, H, M, D]` with
    far-field terms for all that it leaves out."""
    factor = default_scale(query, scale)
    by = choose_implementation(query, implementation)
    _check_memory(plan, query)
    orders = [
        _as_they_are(side) if order is None else order
        for side, order in ((query, plan.query_order), (key, plan.key_order))
    ]
    queries = find_moments(query, orders[0], plan.query_sizes, by=by)
    keys = find_moments(key, orders[1], plan.key_sizes, by=by)
    seen = see_blocks(
        queries.mean.to(query.dtype),
        keys.mean.to(query.dtype),
        key,
        value,
        orders[1],
        plan.key_sizes,
        scale=factor,
        by=by,
    )
    middle = ~plan.keep & (plan.key_sizes > 0).unsqueeze(2)
    terms = FarTerms(middle, seen.bias.float(), seen.value)
    return replace(plan, terms=terms, check=False)


def _check_memory(plan: BlockPlan, query: Tensor) -> None:
    """Refuse terms that are too many even for a head alone."""
    batch, blocks = query.shape[0], plan.keep.shape[2:]
    head = batch * math.prod(blocks) * query.shape[3] * query.element_size()
    if head > _MOST * VALUE_BYTES:
        raise PlanError(
            f"far-field terms of {blocks[0]:,} x {blocks[1]:,} blocks take {head / 1e9:.0f} GB "
            f"per head, expected at most {_MOST * VALUE_BYTES / 1e9:.0f}: take larger blocks, or "
            'compensate="mean"'
        )


def _as_they_are(tokens: Tensor) -> Tensor:
    return torch.arange(tokens.shape[2], device=tokens.device).expand(tokens.shape[:3])
