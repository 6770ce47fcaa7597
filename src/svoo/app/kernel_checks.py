"""Each kernel of a call at real size against its plain form in torch, on a part of the result."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from svoo.backends import attend
from svoo.core.clustering import (
    Implementation,
    assign_tokens,
    choose_implementation,
    from_sorted,
    update_centroids,
)
from svoo.core.far_field import find_moments, see_blocks
from svoo.core.far_plan import plan_far_field
from svoo.core.features import find_features
from svoo.core.plan import BlockPlan
from svoo.core.selection import select_blocks
from svoo.core.sorting import sort_sides
from svoo.core.terms import MeanTerms

LIMIT = 2e-2
"""Of the largest number: bfloat16 rounds weights and results by up to .8 % together."""
_ROWS = 64  # tokens that are compared; all others run too
Tokens = tuple[Tensor, Tensor, Tensor]


def check_kernels(tokens: Tokens, plan: BlockPlan) -> dict[str, float]:
    """Return how far each kernel is off, over the largest number; above LIMIT it is wrong.

    tokens `[B, H, N, D]`; the plan is any of theirs with an order. Kernels run on all heads, the
    plain forms on the first.
    """
    query, key, value = tokens
    by = choose_implementation(query, "auto")
    labels, order, sizes = plan.key_blocks(), plan.key_order, plan.key_sizes
    assert order is not None
    old = key.new_zeros(*sizes.shape, key.shape[3], dtype=torch.float32)
    means = update_centroids(key, labels, old, by=by).centroids
    moments = find_moments(key, order, sizes, by=by)
    plain = find_moments(key[:, :1], order[:, :1], sizes[:, :1], by="torch")
    found = {
        "assignment": _check_assignment(query, means.float(), by),
        "assignment, features": _check_features(tokens, plan, by),
        "selection": _check_selection(query, key, plan),
        "means": _apart(means[:, :1], plain.mean),
        "variances": _apart(moments.variance[:, :1], plain.variance),
    }
    centres = means[:, :, :_ROWS].to(key.dtype)
    rounded = means.to(key.dtype)
    scale = float(key.shape[3] ** -0.5)
    seen = see_blocks(centres, rounded, key, value, order, sizes, scale=scale, by=by)
    exact = see_blocks(
        *(part[:, :1] for part in (centres, rounded, key, value, order, sizes)),
        scale=scale,
        by="torch",
    )
    full = (sizes[:, :1] > 0).unsqueeze(2).expand_as(exact.bias)
    found["far field, log S"] = _apart(seen.bias[:, :1][full], exact.bias[full])
    found["far field, V"] = _apart(seen.value[:, :1], exact.value)
    return found | _check_attention(tokens, plan)


def _check_assignment(tokens: Tensor, weights: Tensor, by: Implementation) -> float:
    """Return by how much a better label than the one found scores, of the largest score."""
    weights = weights - weights.mean(dim=2, keepdim=True)
    bias = weights.new_zeros(weights.shape[:3])
    labels = assign_tokens(tokens, weights, bias, by=by)
    some = slice(0, None, max(1, tokens.shape[2] // _ROWS))
    scores = tokens[:, :1, some].float() @ weights[:, :1].to(tokens.dtype).float().mT
    chosen = scores.gather(-1, labels[:, :1, some].unsqueeze(-1)).squeeze(-1)
    return float((scores.amax(dim=-1) - chosen).max() / scores.abs().max())


def _check_features(tokens: Tokens, plan: BlockPlan, by: Implementation) -> float:
    """Return the same for features of the keys, which are float32 on every device."""
    features = find_features(*tokens)[1]
    old = features.new_zeros(*plan.key_sizes.shape, features.shape[3])
    means = update_centroids(features, plan.key_blocks(), old, by=by).centroids
    return _check_assignment(features, means.float(), by)


def _check_selection(query: Tensor, key: Tensor, plan: BlockPlan) -> float:
    """Return 1 where another block is kept than by sorting: whole numbers leave no room."""
    labels = plan.query_blocks(), plan.key_blocks()
    counts = plan.keep.shape[2], plan.keep.shape[3]
    clusters = from_sorted(query, key, *sort_sides(labels, counts))
    budgets = torch.full((query.shape[1],), 0.2, device=query.device)
    by_sorting = select_blocks(clusters, budgets, implementation="torch")
    return float(not torch.equal(select_blocks(clusters, budgets), by_sorting))


def _check_attention(tokens: Tokens, plan: BlockPlan) -> dict[str, float]:
    """Compare attention with terms of both kinds with the backend that is torch alone."""
    one = tokens[0][:, :1], tokens[1][:, :1], tokens[2][:, :1]
    counts = plan.keep.shape[2], plan.keep.shape[3]
    labels = plan.query_blocks()[:, :1], plan.key_blocks()[:, :1]
    far = plan_far_field(*one, *sort_sides(labels, counts), tolerance=0.01)
    first = replace(far, keep=plan.keep[:, :1], terms=MeanTerms(far.key_sizes > 0), check=False)
    found = {}
    for name, made in (("attention, mean terms", first), ("attention, far terms", far)):
        got = attend(*one, made).output
        found[name] = _apart(got, attend(*one, made, backend="blocked").output)
    return found


def _apart(one: Tensor, other: Tensor) -> float:
    """Return the largest difference over the largest number."""
    largest = other.float().abs().max().clamp(min=1e-30)
    return float((one.float() - other.float()).abs().max() / largest)
