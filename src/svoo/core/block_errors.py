"""What a key block is to a query centroid, token by token: the error of taking its mean instead,
and its mass. In logarithms, so that no logit is too large."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from svoo.core.clustering import Clusters, CoClusters, choose_implementation, update_centroids
from svoo.core.validate import default_scale, inference_only

_CPU_ELEMENTS = 1 << 20  # products held at a time: they stay in cache
_GPU_ELEMENTS = 1 << 26


@inference_only
def log_block_errors(
    clusters: CoClusters, key: Tensor, value: Tensor, *, scale: float | None = None
) -> Tensor:
    """Return log E_ij `[B, H, Cq, Ck]`, with E_ij = sum over the tokens t of key block j of
    |e^(s c_i.k_t) v_t - e^(s c_i.c_j) m_j|^2, for key, value `[B, H, M, D]`.

    c are the clusters' centroids, m_j is the mean value of block j. Minus infinity for an empty
    block, and for one whose tokens are all alike.
    """
    means = block_means(value, clusters.key)
    places = clusters.key.labels.unsqueeze(-1).expand_as(value)
    mean = means.gather(2, places)
    rest = value.to(means.dtype) - mean
    # |h m + g u|^2 of each token, g = e^d and h = g - 1, d its logit less that of the centroid.
    parts = mean.square().sum(-1), 2 * (mean * rest).sum(-1), rest.square().sum(-1)

    def error(g: Tensor, one: Tensor, rows: slice) -> Tensor:
        mm, mu, uu = (part.flatten(0, 1)[rows].reshape(-1, 1) for part in parts)
        h = g - one
        return (h * (h * mm + g * mu) + g * g * uu).clamp_(min=0)

    return _by_block(clusters, key, default_scale(key, scale), error, power=2)


@inference_only
def log_block_masses(clusters: CoClusters, key: Tensor, *, scale: float | None = None) -> Tensor:
    """Return log sum over the tokens t of key block j of e^(s c_i.k_t), `[B, H, Cq, Ck]`, for key
    `[B, H, M, D]`; minus infinity for an empty block."""

    def mass(g: Tensor, _one: Tensor, _rows: slice) -> Tensor:
        return g

    return _by_block(clusters, key, default_scale(key, scale), mass, power=1)


def block_means(tokens: Tensor, side: Clusters) -> Tensor:
    """Return the means of tokens `[B, H, M, D]` under a side's labels, `[B, H, C, D]`; 0 for empty
    clusters."""
    by = choose_implementation(tokens, "auto")
    start = torch.zeros_like(side.centroids)
    return update_centroids(tokens, side.labels, start, by=by).centroids


def _by_block(
    clusters: CoClusters,
    key: Tensor,
    scale: float,
    part: Callable[[Tensor, Tensor, slice], Tensor],
    *,
    power: int,
) -> Tensor:
    """Return log of the sums over key blocks of `part`, a polynomial of that power in e^d.

    `part(g, one, rows)` gets e^(d - m) and e^(-m) `[tokens, Cq]` of the heads `rows`, where m is
    the largest d of a token's block, or 0.
    """
    batch, heads, count, _ = key.shape
    centroids = clusters.query.centroids.flatten(0, 1) * scale  # [P, Cq, D]
    blocks = clusters.key.centroids.shape[2]
    labels = clusters.key.labels
    wide = key.to(centroids.dtype)
    places = labels.unsqueeze(-1).expand_as(wide)
    off_centre = (wide - clusters.key.centroids.gather(2, places)).flatten(0, 1)  # [P, M, D]
    logits = centroids @ clusters.key.centroids.flatten(0, 1).transpose(1, 2)  # [P, Cq, Ck]
    room = _CPU_ELEMENTS if key.device.type == "cpu" else _GPU_ELEMENTS
    group = max(1, room // (count * centroids.shape[1]))
    step = max(1, room // (count * group))
    found = torch.empty_like(logits)
    for first in range(0, batch * heads, group):
        pairs = slice(first, min(first + group, batch * heads))
        number = pairs.stop - first
        rows = labels.flatten(0, 1)[pairs] + blocks * torch.arange(
            number, device=key.device
        ).unsqueeze(-1)
        rows = rows.flatten()
        for start in range(0, centroids.shape[1], step):
            some = slice(start, start + step)
            seen = centroids[pairs, some]  # [p, c, D]
            d = (off_centre[pairs] @ seen.transpose(1, 2)).flatten(0, 1)  # [p * M, c]
            top = d.new_zeros(number * blocks, seen.shape[1])
            top.scatter_reduce_(0, rows.unsqueeze(-1).expand_as(d), d, "amax")
            shift = top.index_select(0, rows)
            terms = part((d - shift).exp_(), shift.neg().exp_(), pairs)
            sums = torch.zeros_like(top).index_add_(0, rows, terms)
            logs = sums.log_() + power * top
            found[pairs, some] = logs.unflatten(0, (number, blocks)).transpose(1, 2)
    return (found + power * logits).view(batch, heads, *logits.shape[1:])
