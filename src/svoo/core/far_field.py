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
how much the head's output counts. Blocks whose terms are all but equal share one: see `group`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from svoo.core.clustering import Clusters, CoClusters, from_labels
from svoo.core.plan import BlockPlan
from svoo.core.terms import FarTerms, GroupTerms
from svoo.core.validate import accumulation_dtype, default_scale, inference_only
from svoo.kernels.triton import why_no_kernels

GROUPS = 8
_LLOYD_STEPS = 4
_CHUNK_ELEMENTS = 1 << 22  # numbers held at a time besides the result
PLAN_BYTES = 1 << 30  # what the terms of a plan may take: more heads go in groups


@dataclass(frozen=True, eq=False)
class View:
    """What query centroids see of key blocks: log_sum `[B, H, Cq, Ck]` (log S, minus infinity for
    an empty block), logit `[B, H, Cq, Ck]` (q_i.c_j * scale), value `[B, H, Cq, Ck, D]`."""

    log_sum: Tensor
    logit: Tensor
    value: Tensor

    @property
    def share(self) -> Tensor:
        """w `[B, H, Cq, Ck]`: each block's share of the softmax of the query centroid."""
        return (self.logit + self.log_sum).softmax(dim=-1)


def heads_per_plan(query_clusters: int, key_clusters: int, size: int, dtype: torch.dtype) -> int:
    """Return how many heads a plan can hold so that its values `[Cq, Ck, D]` stay below
    `PLAN_BYTES`; at least one."""
    per_head = query_clusters * key_clusters * size * torch.finfo(dtype).bits // 8
    return max(1, PLAN_BYTES // per_head)


@inference_only
def look(
    query_centroids: Tensor,
    key_centroids: Tensor,
    key: Tensor,
    value: Tensor,
    key_sizes: Tensor,
    *,
    scale: float,
) -> View:
    """Let query centroids `[B, H, Cq, D]` look at keys and values `[B, H, M, D]` that stand in
    block order, `key_sizes` `[B, H, Ck]` at a time, with key_centroids `[B, H, Ck, D]`.

    All is computed in the centroids' dtype. Holds no `Cq x M` array: key blocks go in chunks,
    padded to the largest of them, which waits for the device. On a GPU one kernel does it, without
    waiting; its values have the tokens' dtype.
    """
    logit = query_centroids @ key_centroids.transpose(2, 3) * scale
    if why_no_kernels(key) is None:
        from svoo.kernels.triton.far_field import look as by_triton

        seen_by_kernel = by_triton(
            query_centroids, key_centroids, key, value, None, key_sizes, scale=scale
        )
        return View(seen_by_kernel[0], logit, seen_by_kernel[1])
    batch, heads, blocks = key_sizes.shape
    dtype = query_centroids.dtype
    log_sum = torch.empty_like(logit)
    seen = torch.zeros(*logit.shape, key.shape[3], dtype=dtype, device=key.device)
    starts = key_sizes.cumsum(dim=-1) - key_sizes
    longest = int(key_sizes.max())
    places = torch.arange(longest, device=key.device)
    rows = batch * heads * longest * (query_centroids.shape[2] + 2 * key.shape[3])
    chunk = max(1, _CHUNK_ELEMENTS // max(1, rows))
    for first in range(0, blocks, chunk):
        here = slice(first, min(first + chunk, blocks))
        inside = places < key_sizes[:, :, here, None]  # [B, H, c, L]
        tokens = (starts[:, :, here, None] + places).clamp(max=key.shape[2] - 1)
        flat = tokens.flatten(2).unsqueeze(-1).expand(-1, -1, -1, key.shape[3])
        keys = key.gather(2, flat).to(dtype).unflatten(2, tokens.shape[2:])
        values = value.gather(2, flat).to(dtype).unflatten(2, tokens.shape[2:])
        # [B, H, c, Cq, L]: every block's logits, less that of its centroid.
        logits = query_centroids.unsqueeze(2) @ keys.transpose(3, 4) * scale
        logits -= logit[:, :, :, here].transpose(2, 3).unsqueeze(-1)
        logits.masked_fill_(~inside.unsqueeze(3), -torch.inf)
        total = logits.logsumexp(dim=-1)  # [B, H, c, Cq]
        log_sum[:, :, :, here] = total.transpose(2, 3)
        weights = (logits - total.unsqueeze(-1)).exp().nan_to_num(0.0)  # an empty block: 0
        seen[:, :, :, here] = (weights @ values).transpose(2, 3)
    return View(log_sum, logit, seen)


def variances(tokens: Tensor, labels: Tensor, centroids: Tensor) -> Tensor:
    """Return the variance of the tokens `[B, H, N, D]` of each cluster along each axis, `[B, H, C,
    D]`; 0 for an empty one. Distances are squared, not second moments subtracted."""
    index = labels.unsqueeze(-1).expand(-1, -1, -1, tokens.shape[3])
    apart = (tokens.to(centroids.dtype) - centroids.gather(2, index)).square()
    zeros = torch.zeros_like(centroids)
    sums = zeros.scatter_add(2, index, apart)
    counts = torch.zeros(*centroids.shape[:3], dtype=centroids.dtype, device=tokens.device)
    counts.scatter_add_(2, labels, torch.ones_like(labels, dtype=centroids.dtype))
    return sums / counts.clamp(min=1).unsqueeze(-1)


def expected_error(
    view: View, query_variance: Tensor, key_variance: Tensor, value_variance: Tensor, scale: float
) -> Tensor:
    """Return e `[B, H, Cq, Ck]`: the error of the output if a block is left to its term; variances
    `[B, H, C, D]`."""
    spread = query_variance @ key_variance.transpose(2, 3) * scale**2
    deviation = value_variance.sum(dim=-1).sqrt().unsqueeze(2)
    length = view.value.norm(dim=-1)
    error: Tensor = view.share * (spread.sqrt() * deviation + spread / 2 * length)
    return error


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
        scores = (
            key_centroids @ centres.transpose(2, 3) - centres.square().sum(-1).unsqueeze(2) / 2
        )
        labels = scores.argmax(dim=-1)
        if step + 1 < _LLOYD_STEPS:
            centres = _group_means(key_centroids, labels, weights, centres)
    return labels


def _group_means(rows: Tensor, labels: Tensor, weights: Tensor, before: Tensor) -> Tensor:
    """Return weighted means of rows `[B, H, Ck, D]` by label, `[B, H, G, D]`; those of an empty
    group stay as before."""
    index = labels.unsqueeze(-1).expand_as(rows)
    sums = torch.zeros_like(before).scatter_add_(2, index, rows * weights)
    total = torch.zeros_like(before[..., :1]).scatter_add_(2, labels.unsqueeze(-1), weights)
    return torch.where(total > 0, sums / total.clamp(min=1e-30), before)


def group(
    view: View,
    keep: Tensor,
    clusters: CoClusters,
    key_means: Tensor,
    value_means: Tensor,
    query_variance: Tensor,
    *,
    tolerance: float,
    weight: Tensor,
    groups: int,
    scale: float,
    token: torch.dtype,
) -> tuple[Tensor, GroupTerms]:
    """Return which left-out blocks join their group's one term, bool `[B, H, Cq, Ck]`, and the
    terms.

    Block j joins where g_h w_ij (sqrt(s) |v_j - v_g| + s / 2 |v_j|) is below the tolerance, with
    s = scale^2 sum_d var_d(q in i) (c_j - c_g)_d^2. A group's key and value are means weighted by
    w, its bias is such that the query centroid sees what it saw of its blocks together. Both are
    rounded to the dtype `token`.
    """
    sizes = clusters.key.sizes
    labels = group_labels(key_means, sizes, groups)
    count = min(groups, sizes.shape[2])
    weights = sizes.to(key_means.dtype).unsqueeze(-1)
    zeros = torch.zeros_like(key_means[:, :, :count])
    index = labels.unsqueeze(-1).expand_as(key_means)
    from_key = key_means - _group_means(key_means, labels, weights, zeros).gather(2, index)
    from_value = value_means - _group_means(value_means, labels, weights, zeros).gather(2, index)
    spread = query_variance @ from_key.square().transpose(2, 3) * scale**2
    share = view.share
    moved = spread.sqrt() * from_value.norm(dim=-1).unsqueeze(2)
    moved = moved + spread / 2 * value_means.norm(dim=-1).unsqueeze(2)
    joins = weight.view(-1, 1, 1) * share * moved < tolerance
    joins = joins & ~keep & (sizes > 0).unsqueeze(2)
    member = torch.nn.functional.one_hot(labels, count).to(share.dtype)  # [B, H, Ck, G]
    taken = torch.where(joins, share, 0.0)
    mass = taken @ member  # [B, H, Cq, G]
    part = taken.unsqueeze(3) * member.transpose(2, 3).unsqueeze(2)  # [B, H, Cq, G, Ck]
    part = part / mass.clamp(min=1e-30).unsqueeze(-1)
    key = (part @ key_means.unsqueeze(2)).to(token).to(share.dtype)  # rounded before the bias
    value = part @ value_means.unsqueeze(2)
    seen = (view.logit + view.log_sum).masked_fill(~joins, -torch.inf)
    by_group = seen.unsqueeze(3) + member.transpose(2, 3).unsqueeze(2).log()
    total = by_group.logsumexp(dim=-1)  # [B, H, Cq, G]
    own = (clusters.query.centroids.unsqueeze(3) * key).sum(dim=-1) * scale
    return joins, GroupTerms((total - own).float(), key.to(token), value.to(token))


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
    clusters = from_labels(query, key, query_labels, key_labels, counts)
    values = from_labels(query, value, query_labels, key_labels, counts).key.centroids
    wide = accumulation_dtype(query)
    if weight is None:
        weight = torch.ones(query.shape[1], dtype=wide, device=query.device)
    weight = weight.to(query.device, wide)
    # Rounded as the tokens are, before the bias is made: then the two products cancel.
    rounded = CoClusters(
        _rounded(clusters.query, query.dtype, wide), _rounded(clusters.key, query.dtype, wide)
    )
    nothing = torch.zeros(*query.shape[:2], *counts, dtype=torch.bool, device=query.device)
    plan = BlockPlan.from_labels(query_labels, key_labels, nothing, check=False)
    view = look(
        rounded.query.centroids,
        rounded.key.centroids,
        plan.permute_keys(key),
        plan.permute_keys(value),
        plan.key_sizes,
        scale=factor,
    )
    query_variance = variances(query, query_labels, clusters.query.centroids)
    key_variance = variances(key, key_labels, clusters.key.centroids)
    value_variance = variances(value, key_labels, values)
    error = expected_error(view, query_variance, key_variance, value_variance, factor)
    keep = choose(error, plan.key_sizes, tolerance, weight)
    middle = ~keep & (plan.key_sizes > 0).unsqueeze(2)
    far = None
    if groups:
        joins, far = group(
            view,
            keep,
            rounded,
            rounded.key.centroids,
            values,
            query_variance,
            tolerance=tolerance,
            weight=weight,
            groups=groups,
            scale=factor,
            token=query.dtype,
        )
        middle &= ~joins
    terms = FarTerms(middle, view.log_sum.float(), view.value.to(query.dtype), far)
    return replace(plan, keep=keep, terms=terms)


@inference_only
def add_far_terms(
    plan: BlockPlan, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None
) -> BlockPlan:
    """Return any plan of the video tokens with far-field terms for what it leaves out."""
    factor = default_scale(query, scale)
    counts = plan.keep.shape[2], plan.keep.shape[3]
    clusters = from_labels(query, key, plan.query_blocks(), plan.key_blocks(), counts)
    wide = accumulation_dtype(query)
    view = look(
        _rounded(clusters.query, query.dtype, wide).centroids,
        _rounded(clusters.key, query.dtype, wide).centroids,
        plan.permute_keys(key),
        plan.permute_keys(value),
        plan.key_sizes,
        scale=factor,
    )
    middle = ~plan.keep & (plan.key_sizes > 0).unsqueeze(2)
    terms = FarTerms(middle, view.log_sum.float(), view.value.to(query.dtype))
    return replace(plan, terms=terms, check=False)


def _rounded(side: Clusters, token: torch.dtype, wide: torch.dtype) -> Clusters:
    return Clusters(side.labels, side.centroids.to(token).to(wide), side.sizes)
