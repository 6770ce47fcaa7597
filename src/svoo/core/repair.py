"""Repair of a sparse output from a few rows computed exactly: SparsePR's, for any plan.

Some probe rows get exact attention. What they miss is fitted as an affine function of the sparse
output, of low rank, and added to every row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from svoo.core.block_errors import rows_of_labels
from svoo.core.clustering import choose_implementation, update_centroids
from svoo.core.eigen import eigen
from svoo.core.plan import BlockPlan
from svoo.core.validate import accumulation_dtype, default_scale, inference_only

_LEAST_SPREAD = 1e-5


@dataclass(frozen=True, eq=False)
class Probes:
    """Rows int64 `[B, H, P]` that speak for one block of queries each, and their weights `[B, H,
    P]`, of mean 1. Weight 0: there was no block to speak for, and the row adds nothing."""

    rows: Tensor
    weights: Tensor


@inference_only
def choose_probes(features: Tensor, blocks: Tensor, sizes: Tensor, count: int) -> Probes:
    """Choose one row in each of the `count` largest query blocks: the one nearest to the block's
    mean, the first of equals.

    features `[B, H, N, F]`, blocks `[B, H, N]` (the block of every row), sizes `[B, H, C]`. There
    are no more probes than blocks.
    """
    by = choose_implementation(features, "auto")
    start = features.new_zeros(*sizes.shape, features.shape[3], dtype=accumulation_dtype(features))
    means = update_centroids(features, blocks, start, by=by).centroids
    own = rows_of_labels(means.flatten(0, 1), blocks.flatten(0, 1)).view_as(features)
    distance = (features - own).square_().sum(dim=-1)
    least = torch.full_like(sizes, torch.inf, dtype=distance.dtype)
    least = least.scatter_reduce(2, blocks, distance, "amin")
    tokens = torch.arange(features.shape[2], device=features.device).expand_as(blocks)
    nearest = tokens.masked_fill(distance > least.gather(2, blocks), features.shape[2] - 1)
    rows = torch.full_like(sizes, features.shape[2] - 1)
    rows = rows.scatter_reduce(2, blocks, nearest, "amin")
    largest = sizes.argsort(dim=-1, descending=True, stable=True)[..., :count]
    weights = sizes.gather(2, largest).to(distance.dtype)
    mean = weights.sum(dim=-1, keepdim=True) / (weights > 0).sum(dim=-1, keepdim=True)
    return Probes(rows.gather(2, largest), weights / mean)


@inference_only
def complete_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: BlockPlan,
    rows: Tensor,
    output: Tensor,
    lse: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    """Return the exact attention of some rows `[B, H, P]`, float32 or wider `[B, H, P, D]`: what a
    plan without terms computed of them, and the video keys that it left out.

    query `[B, H, N, D]`, key, value `[B, H, M, D]`, output `[B, H, N, D]` and lse `[B, H, N]` are
    of the video; text that the plan was given since is in output and lse already.
    """
    dtype = accumulation_dtype(query)
    found, sums = take_rows(output, rows).to(dtype), lse.gather(2, rows).to(dtype).unsqueeze(-1)
    blocks = plan.query_blocks().gather(2, rows).unsqueeze(-1)
    keep = plan.keep.gather(2, blocks.expand(*rows.shape, plan.keep.shape[3]))
    seen = keep.gather(3, plan.key_blocks().unsqueeze(2).expand(*rows.shape, key.shape[2]))
    logits = _logits(query, key, rows, scale).masked_fill_(seen, -torch.inf)
    total = torch.logaddexp(sums, logits.logsumexp(dim=-1, keepdim=True))
    return found * (sums - total).exp() + (logits - total).exp_() @ value.to(dtype)


@inference_only
def exact_rows(
    query: Tensor, key: Tensor, value: Tensor, rows: Tensor, *, scale: float | None = None
) -> Tensor:
    """Return the attention of some rows `[B, H, P]` of query `[B, H, N, D]` over all of key, value
    `[B, H, M, D]`, `[B, H, P, D]` in float32 or wider."""
    return _logits(query, key, rows, scale).softmax(dim=-1) @ value.to(accumulation_dtype(query))


@inference_only
def repair_output(
    output: Tensor, probes: Probes, exact: Tensor, *, rank: int = 16, ridge: float = 0.1
) -> Tensor:
    """Return output `[B, H, N, D]` with the error of the probes fitted and added to every row.

    exact `[B, H, P, D]` is the attention of the probes, and replaces theirs. Their outputs are
    standardised (weighted mean and spread); a weighted ridge regression fits what they miss beyond
    its mean; the fit is kept in the `rank` directions in which most is missed.
    """
    wide = output.to(exact.dtype)
    found = take_rows(wide, probes.rows)
    share = (probes.weights / probes.weights.sum(dim=-1, keepdim=True)).unsqueeze(-1)
    mean = (share * found).sum(dim=2, keepdim=True)
    spread = (share * (found - mean).square()).sum(dim=2, keepdim=True).sqrt()
    spread = spread.clamp(min=_LEAST_SPREAD)
    missed = exact - found
    mean_missed = (share * missed).sum(dim=2, keepdim=True)
    root = probes.weights.sqrt().unsqueeze(-1)
    x, y = root * (found - mean) / spread, root * (missed - mean_missed)
    gram = x @ x.transpose(2, 3)
    gram.diagonal(dim1=2, dim2=3).add_(ridge)
    fit = x.transpose(2, 3) @ torch.cholesky_solve(
        y, torch.linalg.cholesky_ex(gram).L
    )  # [.., D, D]
    vectors = eigen(y.transpose(2, 3) @ y).vectors  # rising
    basis = vectors[..., max(0, vectors.shape[-1] - rank) :]
    change = fit @ basis @ basis.transpose(2, 3) / spread.transpose(2, 3)
    repaired: Tensor = wide + (wide - mean) @ change + mean_missed
    rows = probes.rows.unsqueeze(-1).expand_as(exact)
    return repaired.scatter_(2, rows, exact).to(output.dtype)


def take_rows(tokens: Tensor, rows: Tensor) -> Tensor:
    """Return rows `[B, H, P]` of tokens `[B, H, N, D]`, `[B, H, P, D]`."""
    return tokens.gather(2, rows.unsqueeze(-1).expand(*rows.shape, tokens.shape[3]))


def _logits(query: Tensor, key: Tensor, rows: Tensor, scale: float | None) -> Tensor:
    dtype = accumulation_dtype(query)
    scaled = take_rows(query, rows).to(dtype) * default_scale(query, scale)
    return scaled @ key.to(dtype).transpose(2, 3)
