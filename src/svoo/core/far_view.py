"""What query blocks see of key blocks, and the moments of both: the far field's numbers.

`core.far_field` has the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from svoo.core.clustering import Clusters, CoClusters, choose_implementation, update_centroids
from svoo.core.plan import BlockPlan
from svoo.core.validate import accumulation_dtype, inference_only
from svoo.kernels.cpp import far_field as cpp
from svoo.kernels.cpp import why_no_cpp

_CHUNK_ELEMENTS = 1 << 22  # numbers held at a time besides the result


@dataclass(frozen=True, eq=False)
class View:
    """What query centroids see of key blocks: log_sum `[B, H, Cq, Ck]` (log S, minus infinity for
    an empty block), logit `[B, H, Cq, Ck]` (q_i.c_j * scale), value `[B, H, Cq, Ck, D]` and its
    length `[B, H, Cq, Ck]`."""

    log_sum: Tensor
    logit: Tensor
    value: Tensor
    length: Tensor

    @cached_property
    def share(self) -> Tensor:
        """w `[B, H, Cq, Ck]`: each block's share of the softmax of the query centroid."""
        return (self.logit + self.log_sum).softmax(dim=-1)


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
    padded to the largest of them, which waits for the device.
    """
    batch, heads, blocks = key_sizes.shape
    dtype = query_centroids.dtype
    logit = query_centroids @ key_centroids.transpose(2, 3) * scale
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
    length: Tensor = seen.norm(dim=-1)
    return View(log_sum, logit, seen, length)


def look_from(
    clusters: CoClusters, key: Tensor, value: Tensor, plan: BlockPlan, scale: float
) -> View:
    """Return the view of clusters with rounded centroids: by the C++ kernel where it runs, which
    reads the tokens where they are and leaves the values in the tokens' dtype."""
    centroids = clusters.query.centroids, clusters.key.centroids
    if why_no_cpp(key) is not None:
        in_order = plan.permute_keys(key), plan.permute_keys(value)
        return look(*centroids, *in_order, plan.key_sizes, scale=scale)
    order = plan.key_order
    if order is None:
        order = torch.arange(key.shape[2], device=key.device).expand(key.shape[:3])
    seen = cpp.see_blocks(*centroids, key, value, order, plan.key_sizes, scale)
    logit = centroids[0] @ centroids[1].transpose(2, 3) * scale
    return View(seen[0], logit, *seen[1:])


def find_moments(
    tokens: Tensor, labels: Tensor, order: Tensor | None, sizes: Tensor
) -> tuple[Clusters, Tensor]:
    """Return the clusters of tokens `[B, H, N, D]` with these labels, and their variances."""
    if order is not None and why_no_cpp(tokens) is None:
        means, variance = cpp.moments(tokens, order, sizes)
        return Clusters(labels, means, sizes), variance
    zeros = torch.zeros(
        *sizes.shape, tokens.shape[3], dtype=accumulation_dtype(tokens), device=tokens.device
    )
    clusters = update_centroids(tokens, labels, zeros, by=choose_implementation(tokens, "auto"))
    return clusters, variances(tokens, labels, clusters.centroids)


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
