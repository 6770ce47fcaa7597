"""What a key block is to a query centroid, token by token: the error of taking its mean instead,
and its mass. In logarithms, so that no logit is too large."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from svoo.core.clustering import Clusters, CoClusters, choose_implementation, update_centroids
from svoo.core.validate import default_scale, inference_only

_CPU_ELEMENTS = 1 << 18  # products held at a time: they stay in cache
_GPU_ELEMENTS = 1 << 26
_HARMLESS = 30.0  # logits whose squared exponentials float32 can add up

Part = Callable[[Tensor, Tensor | None], Tensor]
"""What each token adds to the sum of its block."""


@inference_only
def log_block_errors(
    clusters: CoClusters, key: Tensor, value: Tensor, *, scale: float | None = None
) -> Tensor:
    """Return log E_ij `[B, H, Cq, Ck]`, with E_ij = sum over the tokens t of key block j of
    |e^(s c_i.k_t) v_t - e^(s c_i.c_j) m_j|^2, for key, value `[B, H, M, D]`.

    c are the clusters' centroids, m_j is the mean value of block j. Minus infinity for an empty
    block, and for one whose tokens are all alike.
    """
    means = block_means(value, clusters.key).flatten(0, 1)
    values = value.to(means.dtype).flatten(0, 1)
    labels = clusters.key.labels.flatten(0, 1)

    def prepare(pairs: slice) -> Part:
        mean = rows_of_labels(means[pairs], labels[pairs])
        rest = values[pairs] - mean
        # |h v + u|^2 of each token: u its value less the mean, h = e^d - 1, d its logit less the
        # centroid's.
        vv, vu, uu = (
            torch.linalg.vecdot(left, right).view(-1, 1)
            for left, right in (
                (values[pairs], values[pairs]),
                (2 * values[pairs], rest),
                (rest, rest),
            )
        )

        def error(g: Tensor, one: Tensor | None) -> Tensor:
            found: Tensor
            h = g.sub_(1 if one is None else one)
            if one is None:
                found = torch.addcmul(vu, h, vv).mul_(h).add_(uu)
            else:
                found = (h * vv).addcmul_(one, vu).mul_(h).addcmul_(one.square_(), uu)
            return found

        return error

    return _by_block(clusters, key, default_scale(key, scale), prepare, power=2)


@inference_only
def log_block_masses(clusters: CoClusters, key: Tensor, *, scale: float | None = None) -> Tensor:
    """Return log sum over the tokens t of key block j of e^(s c_i.k_t), `[B, H, Cq, Ck]`, for key
    `[B, H, M, D]`; minus infinity for an empty block."""

    def prepare(_pairs: slice) -> Part:
        return lambda g, _one: g

    return _by_block(clusters, key, default_scale(key, scale), prepare, power=1)


def block_means(tokens: Tensor, side: Clusters) -> Tensor:
    """Return the means of tokens `[B, H, M, D]` under a side's labels, `[B, H, C, D]`; 0 for empty
    clusters."""
    by = choose_implementation(tokens, "auto")
    start = torch.zeros_like(side.centroids)
    known = None if side.order is None else side.sorted()
    return update_centroids(tokens, side.labels, start, by=by, known=known).centroids


def rows_of_labels(rows: Tensor, labels: Tensor) -> Tensor:
    """Return the row of `[P, C, D]` that each label `[P, M]` names, `[P, M, D]`."""
    found = rows.flatten(0, 1).index_select(0, _number_rows(labels, rows.shape[1]))
    return found.view(*labels.shape, rows.shape[2])


def _number_rows(labels: Tensor, count: int) -> Tensor:
    """Return labels `[P, M]` of `count` blocks as row numbers of all heads' blocks, `[P * M]`."""
    starts = count * torch.arange(len(labels), device=labels.device)
    return (labels + starts.unsqueeze(-1)).flatten()


def _by_block(
    clusters: CoClusters,
    key: Tensor,
    scale: float,
    prepare: Callable[[slice], Part],
    *,
    power: int,
) -> Tensor:
    """Return log of the sums over key blocks of a part, a polynomial of that power in e^d.

    `prepare` gets the heads that are next, and its result e^(d - m) and e^(-m) `[tokens, Cq]`,
    which it may overwrite; m is the largest d of a token's block, or 0. Without e^(-m), m is 0.
    """
    keys, labels = key.flatten(0, 1), clusters.key.labels.flatten(0, 1)
    centroids = clusters.query.centroids.flatten(0, 1) * scale  # [P, Cq, D]
    middles = clusters.key.centroids.flatten(0, 1)  # [P, Ck, D]
    found = centroids @ middles.transpose(1, 2) * power  # [P, Cq, Ck]
    blocks = middles.shape[1]
    room = _CPU_ELEMENTS if key.device.type == "cpu" else _GPU_ELEMENTS
    group = max(1, room // (key.shape[2] * centroids.shape[1]))
    step = max(1, room // (key.shape[2] * group))
    for first in range(0, len(keys), group):
        pairs = slice(first, min(first + group, len(keys)))
        part, rows = prepare(pairs), _number_rows(labels[pairs], blocks)
        off_centre = keys[pairs] - rows_of_labels(middles[pairs], labels[pairs])
        for start in range(0, centroids.shape[1], step):
            seen = centroids[pairs, start : start + step].transpose(1, 2)  # [p, D, c]
            d = (off_centre @ seen).flatten(0, 1)  # [p * M, c]
            sums = d.new_zeros((pairs.stop - first) * blocks, d.shape[1])
            if key.device.type == "cpu" and float(d.max()) < _HARMLESS:
                logs = sums.index_add_(0, rows, part(d.exp_(), None)).clamp_(min=0).log_()
            else:
                targets = rows.unsqueeze(-1).expand_as(d)
                top = torch.zeros_like(sums).scatter_reduce_(0, targets, d, "amax")
                shift = top.index_select(0, rows)
                terms = part(d.sub_(shift).exp_(), shift.neg_().exp_())
                logs = sums.index_add_(0, rows, terms).clamp_(min=0).log_()
                logs.add_(top, alpha=power)
            logs = logs.view(-1, blocks, d.shape[1])
            found[pairs, start : start + step] += logs.transpose(1, 2)
    return found.view(*key.shape[:2], *found.shape[1:])
