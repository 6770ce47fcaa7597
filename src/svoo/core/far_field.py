"""The far field: what a query block sees of the key blocks that it leaves out.

The centroid q_i of query block i looks at every key n of key block j, once and exactly:

    S_ij = sum_n exp((q_i.k_n - q_i.c_j) * scale)         its logarithm is the term's bias
    V_ij = sum_n softmax_n(q_i.k_n * scale) v_n           the term's value
    w_ij = softmax_j(q_i.c_j * scale + log S_ij)          the block's share of the softmax

A left-out block then enters the softmax of every query q of block i as one term, with logit
q.c_j * scale + log S_ij and value V_ij. What is lost is only what varies *inside* the query block,
about

    e_ij = w_ij (sqrt(s_ij) sd_j + s_ij / 2 |V_ij|)
    s_ij = scale^2 sum_d var_d(q in i) var_d(k in j)

with sd_j the standard deviation of the values of block j. A block is worth computing where
g_h e_ij / size_j is above one tolerance, the same for all heads, layers, steps and sizes; g_h says
how much the head's output counts. Blocks whose terms are all but equal share one.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from svoo.core.clustering import Clusters, CoClusters, from_labels
from svoo.core.far_tiers import Blocks, choose_tiers
from svoo.core.far_view import find_moments, look_from
from svoo.core.plan import BlockPlan
from svoo.core.terms import FarTerms
from svoo.core.validate import accumulation_dtype, default_scale, inference_only

GROUPS = 8
PLAN_BYTES = 1 << 30  # what the terms of a plan may take: more heads go in groups


def heads_per_plan(query_clusters: int, key_clusters: int, size: int, dtype: torch.dtype) -> int:
    """Return how many heads a plan can hold so that its values `[Cq, Ck, D]` stay below
    `PLAN_BYTES`; at least one."""
    per_head = query_clusters * key_clusters * size * torch.finfo(dtype).bits // 8
    return max(1, PLAN_BYTES // per_head)


@inference_only
def plan_far_field(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_labels: Tensor,
    key_labels: Tensor,
    counts: tuple[int, int],
    *,
    tolerance: float,
    weight: Tensor | None = None,
    groups: int = GROUPS,
    scale: float | None = None,
) -> BlockPlan:
    """Return the plan with far-field terms for query `[B, H, N, D]`, key, value `[B, H, M, D]` and
    their labels `[B, H, N]`, `[B, H, M]` in `counts` clusters.

    `tolerance`: see the module; `weight` `[H]` is g_h (None: 1); `groups=0` groups nothing.
    """
    factor = default_scale(query, scale)
    nothing = torch.zeros(*query.shape[:2], *counts, dtype=torch.bool, device=query.device)
    plan = BlockPlan.from_labels(query_labels, key_labels, nothing, check=False)
    query_side, query_variance = find_moments(
        query, query_labels, plan.query_order, plan.query_sizes
    )
    key_side, key_variance = find_moments(key, key_labels, plan.key_order, plan.key_sizes)
    values, value_variance = find_moments(value, key_labels, plan.key_order, plan.key_sizes)
    wide = accumulation_dtype(query)
    if weight is None:
        weight = torch.ones(query.shape[1], dtype=wide, device=query.device)
    weight = weight.to(query.device, wide)
    # Rounded as the tokens are, before the bias is made: then the two products cancel.
    rounded = CoClusters(
        _rounded(query_side, query.dtype, wide), _rounded(key_side, query.dtype, wide)
    )
    view = look_from(rounded, key, value, plan, factor)
    tiers = choose_tiers(
        view,
        Blocks(rounded.query.centroids, query_variance, plan.query_sizes),
        Blocks(rounded.key.centroids, key_variance, plan.key_sizes),
        Blocks(values.centroids, value_variance, plan.key_sizes),
        tolerance=tolerance,
        weight=weight,
        groups=groups,
        scale=factor,
        token=query.dtype,
    )
    value = view.value.to(query.dtype)
    terms = FarTerms(tiers.middle, view.log_sum.float(), value, tiers.groups)
    return replace(plan, keep=tiers.keep, terms=terms)


@inference_only
def add_far_terms(
    plan: BlockPlan, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None
) -> BlockPlan:
    """Return any plan of the video tokens with far-field terms for what it leaves out."""
    factor = default_scale(query, scale)
    counts = plan.keep.shape[2], plan.keep.shape[3]
    clusters = from_labels(query, key, plan.query_blocks(), plan.key_blocks(), counts)
    wide = accumulation_dtype(query)
    rounded = CoClusters(
        _rounded(clusters.query, query.dtype, wide), _rounded(clusters.key, query.dtype, wide)
    )
    view = look_from(rounded, key, value, plan, factor)
    middle = ~plan.keep & (plan.key_sizes > 0).unsqueeze(2)
    terms = FarTerms(middle, view.log_sum.float(), view.value.to(query.dtype))
    return replace(plan, terms=terms, check=False)


def _rounded(side: Clusters, token: torch.dtype, wide: torch.dtype) -> Clusters:
    return Clusters(side.labels, side.centroids.to(token).to(wide), side.sizes)
