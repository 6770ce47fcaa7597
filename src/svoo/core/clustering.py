"""The paper's co-clustering of queries and keys, in inner-product form (k-means is in
`core.kmeans`).

A token's *affinity* is the vector of its inner products with the centroids of the other side.
Algorithm 1 of the paper gives a key to the key centroid whose affinity points in the most similar
direction. K are the keys, Cq and Ck the query and key centroids, norm(.) scales rows to length 1:

    P = K Cq^T                                          affinities of the keys
    Q = Ck Cq^T                                         affinities of the key centroids
    label(n) = argmin_j |norm(P)_n - norm(Q)_j|
             = argmax_j <P_n, norm(Q)_j>                the length of P_n is the same for every j
             = argmax_j <k_n, W_j>                      with W = norm(Q) Cq, because P_n = k_n Cq^T

W has the shape of Ck. So co-clustering costs what k-means costs: one `N x C x D` product per side.
Queries are assigned in the same way, with the two sides exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from svoo.core.random import seeded
from svoo.core.sorting import SortedLabels, sort_labels
from svoo.core.validate import accumulation_dtype, check_tensor, check_tokens, inference_only
from svoo.errors import BackendUnavailableError, ConfigError, NonFiniteError, ShapeError
from svoo.kernels.cpp import clusters as cpp
from svoo.kernels.cpp import why_no_cpp
from svoo.kernels.triton import why_no_kernels

_CHUNK_ELEMENTS = 1 << 20  # scores held at a time


@dataclass(frozen=True)
class Clusters:
    """The clusters of the queries, or of the keys: labels int64 `[B, H, N]`, centroids
    `[B, H, C, D]`, sizes int64 `[B, H, C]`.

    An empty cluster has size 0, and its centroid means nothing. `order` `[B, H, N]` is an order of
    tokens that sorts the labels; None where nobody needed it.
    """

    labels: Tensor
    centroids: Tensor
    sizes: Tensor
    order: Tensor | None = None

    def sorted(self) -> SortedLabels:
        """Return the labels in order: sorted now, if nobody did."""
        if self.order is None:
            return sort_labels(self.labels, self.sizes.shape[2])
        return SortedLabels(self.order, self.sizes)


@dataclass(frozen=True)
class CoClusters:
    """The clusters of the queries and the clusters of the keys."""

    query: Clusters
    key: Clusters

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.query.centroids.device


Centroids = tuple[Tensor, Tensor]
Implementation = Literal["auto", "triton", "cpp", "torch"]


@inference_only
def co_cluster(
    query: Tensor,
    key: Tensor,
    query_clusters: int,
    key_clusters: int,
    *,
    iterations: int = 2,
    initial: Centroids | None = None,
    generator: torch.Generator | None = None,
    check: bool = True,
    implementation: Implementation = "auto",
) -> CoClusters:
    """Group keys by their affinity to the query centroids, then queries by their affinity to the
    new key centroids, `iterations` times.

    query `[B, H, N, D]`, key `[B, H, M, D]`. `initial` gives the first (query, key) centroids
    `[B, H, C, D]`; if None, `generator` draws tokens without replacement (None: a fixed seed).
    Ties go to the lowest index. A centroid of zero affinity scores 0. An empty cluster keeps its
    centroid. An `N x C` array is held only in chunks.

    `implementation`: "triton" runs on a CUDA device (it also rounds W, to bfloat16 or float16),
    "cpp" on the CPU, "torch" anywhere; "auto" takes the first of these that can run.
    """
    query_centroids, key_centroids = start_centroids(
        query, key, query_clusters, key_clusters, iterations, initial, generator, check=check
    )
    by = choose_implementation(query, implementation)
    query_side, key_side = query_centroids, key_centroids
    clusters = None
    for _ in range(iterations):
        key_labels = _assign_by_affinity(key, key_side, query_side, by=by)
        keys = update_centroids(key, key_labels, key_side, by=by)
        key_side = keys.centroids
        query_labels = _assign_by_affinity(query, query_side, key_side, by=by)
        queries = update_centroids(query, query_labels, query_side, by=by)
        query_side = queries.centroids
        clusters = CoClusters(queries, keys)
    assert clusters is not None  # iterations >= 1 was checked
    return clusters


@inference_only
def from_sorted(
    query: Tensor, key: Tensor, query_side: SortedLabels, key_side: SortedLabels
) -> CoClusters:
    """Return clusters with the given labels and the means of the present tokens as centroids, 0
    for empty ones. Costs O((N + M) D)."""
    sides = []
    for tokens, known in ((query, query_side), (key, key_side)):
        shape = (*known.sizes.shape, tokens.shape[3])
        empty = torch.zeros(shape, dtype=accumulation_dtype(tokens), device=tokens.device)
        by = choose_implementation(tokens, "auto")
        sides.append(update_centroids(tokens, known.labels(), empty, by=by, known=known))
    return CoClusters(*sides)


def choose_implementation(tokens: Tensor, implementation: Implementation) -> Implementation:
    """Return the implementation to run. One that is asked for by name runs, or is refused with
    the reason; "auto" takes the first that can run."""
    if implementation not in get_args(Implementation):
        known = ", ".join(get_args(Implementation))
        raise ConfigError(f"implementation must be one of {known}, got {implementation!r}")
    obstacles: dict[Implementation, Callable[[Tensor], str | None]] = {
        "triton": why_no_kernels,
        "cpp": why_no_cpp,
    }
    for name, why_not in obstacles.items():
        if implementation in ("auto", name):
            reason = why_not(tokens)
            if reason is None:
                return name
            if implementation == name:
                raise BackendUnavailableError(f"clustering cannot run here:\n  {name}: {reason}")
    return "torch"


def start_centroids(
    query: Tensor,
    key: Tensor,
    query_clusters: int,
    key_clusters: int,
    iterations: int,
    initial: Centroids | None,
    generator: torch.Generator | None,
    *,
    check: bool,
) -> Centroids:
    """Check the request; return the first query and key centroids `[B, H, C, D]`, given or drawn,
    in the accumulation dtype."""
    check_tokens(query, key, finite=check)
    if not isinstance(iterations, int) or iterations < 1:
        raise ConfigError(f"iterations must be a whole number >= 1, got {iterations}")
    for name, count, tokens in (("query", query_clusters, query), ("key", key_clusters, key)):
        if not isinstance(count, int) or not 1 <= count <= tokens.shape[2]:
            raise ConfigError(
                f"{name}_clusters must be between 1 and the {tokens.shape[2]} {name} tokens, "
                f"got {count}"
            )
    dtype = accumulation_dtype(query)
    if initial is None:
        chance = generator or seeded()
        return (
            _draw_tokens(query, query_clusters, chance).to(dtype),
            _draw_tokens(key, key_clusters, chance).to(dtype),
        )
    if not isinstance(initial, tuple) or len(initial) != 2:
        raise ConfigError(f"initial must be (query centroids, key centroids), got {initial!r}")
    for name, given, tokens, count in (
        ("query", initial[0], query, query_clusters),
        ("key", initial[1], key, key_clusters),
    ):
        if check:
            check_tensor(f"initial {name} centroids", given)
        expected = (*tokens.shape[:2], count, tokens.shape[3])
        if given.shape != expected:
            raise ShapeError(
                f"initial {name} centroids must be {list(expected)}, got {list(given.shape)}"
            )
        if check and not bool(torch.isfinite(given).all()):
            raise NonFiniteError(f"initial {name} centroids hold NaN or infinity")
    return initial[0].to(dtype), initial[1].to(dtype)


def _draw_tokens(tokens: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return `count` different tokens `[B, H, count, D]`, the same ones for every head."""
    drawn = torch.randperm(tokens.shape[2], generator=generator, device=generator.device)[:count]
    return tokens.index_select(2, drawn.to(tokens.device, non_blocking=True))


def _assign_by_affinity(
    tokens: Tensor, centroids: Tensor, others: Tensor, *, by: Implementation
) -> Tensor:
    """Return for each token the index `[B, H, N]` of the centroid with the most similar affinity.

    tokens `[B, H, N, D]` and centroids `[B, H, C, D]` are of one side, `others` `[B, H, O, D]` the
    centroids of the other. Similar: the largest cosine between the two vectors of inner products
    with `others`.
    """
    labels = assign_tokens(tokens, _affinity_weights(centroids, others), by=by)
    if others.shape[2] == 1:  # a normalised affinity is 1, 0 or -1, so most clusters tie
        return first_alike(_unit_rows(centroids @ others.transpose(2, 3)), labels)
    return first_alike(centroids, labels) if by == "torch" else labels


def first_alike(rows: Tensor, labels: Tensor) -> Tensor:
    """Return labels `[B, H, N]` in which equal rows of `[B, H, C, F]` have one label: the lowest.

    Equal rows tie, and ties go to the lowest index. But torch's matrix product may round equal
    columns differently, so that a later one wins. Our own kernels do not.
    """
    whole = torch.int64 if rows.dtype == torch.float64 else torch.int32
    bits = (rows + 0.0).contiguous().view(whole).long()  # minus zero is zero
    # A hash for each row. Integer sums do not depend on the order of addition, so equal rows have
    # equal hashes; different rows almost never do.
    factors = torch.randint(1 << 62, rows.shape[-1:], generator=seeded()).to(rows.device)
    sums = (bits * (2 * factors + 1)).sum(dim=-1)
    first = (sums.unsqueeze(-1) == sums.unsqueeze(-2)).int().argmax(dim=-1)
    return first.gather(2, labels)


def _affinity_weights(centroids: Tensor, others: Tensor) -> Tensor:
    """Return W = norm(C O^T) O, `[B, H, C, D]`, less its mean over C (see `centred`). The label of
    a token t is argmax_j <t, W_j>; C are the centroids, O the `others`."""
    return centred(_unit_rows(centroids @ others.transpose(2, 3)) @ others)


def centred(weights: Tensor) -> Tensor:
    """Subtract the mean over clusters from weights `[B, H, C, D]`.

    All scores of a token change by the same number, so their arg-max does not change. The weights
    get smaller, so rounding to tf32 or bf16 loses less. float64 is left as it is.
    """
    if weights.dtype == torch.float64:
        return weights
    return weights - weights.mean(dim=2, keepdim=True)


def _unit_rows(rows: Tensor) -> Tensor:
    """Scale rows to length 1, without an epsilon; zero rows stay zero.

    Rows are first divided by their largest entry, so that squares do not underflow.
    """
    largest = rows.abs().amax(dim=-1, keepdim=True)
    rows = rows / largest.where(largest > 0, 1)
    length: Tensor = rows.norm(dim=-1, keepdim=True)
    return rows / length.where(length > 0, 1)


def assign_tokens(
    tokens: Tensor, weights: Tensor, bias: Tensor | None = None, *, by: Implementation
) -> Tensor:
    """Return argmax_j (<token, weights_j> + bias_j), int64 `[B, H, N]`; ties go to the lowest j.

    tokens `[B, H, N, D]`, weights `[B, H, C, D]`, bias `[B, H, C]`. Scores are held in chunks.
    """
    if by == "triton":
        from svoo.kernels.triton.assign import assign

        return assign(tokens, weights, bias)
    if by == "cpp":
        return cpp.assign(tokens, weights, bias)
    batch, heads, count, size = tokens.shape
    clusters = weights.shape[2]
    pairs = batch * heads
    flat = tokens.reshape(pairs, count, size)
    flat_weights = weights.reshape(pairs, clusters, size).transpose(1, 2)
    flat_bias = None if bias is None else bias.reshape(pairs, 1, clusters)
    labels = torch.empty(pairs, count, dtype=torch.int64, device=tokens.device)
    # On a CPU one head at a time, so that a chunk stays in cache; on a GPU all heads at once.
    group = 1 if tokens.device.type == "cpu" else pairs
    chunk = min(count, max(64, _CHUNK_ELEMENTS // (clusters * group)))
    room = weights.new_empty(group, chunk, clusters)
    for first in range(0, pairs, group):
        head = slice(first, first + group)
        for start in range(0, count, chunk):
            part = flat[head, start : start + chunk].to(weights.dtype)
            scores = torch.bmm(part, flat_weights[head], out=room[:, : part.shape[1]])
            if flat_bias is not None:
                scores += flat_bias[head]
            # On a CPU `max` takes two thirds of the time of `argmax`; both return the first index.
            labels[head, start : start + chunk] = scores.max(dim=-1).indices
    return labels.view(batch, heads, count)


def update_centroids(
    tokens: Tensor,
    labels: Tensor,
    centroids: Tensor,
    *,
    by: Implementation,
    known: SortedLabels | None = None,
) -> Clusters:
    """Return the clusters of tokens `[B, H, N, D]` with labels `[B, H, N]`, which are `known` in
    order, or are sorted where that is needed.

    Centroids are the means of their tokens, in the dtype of the old `centroids` `[B, H, C, D]`; an
    empty cluster keeps its old one.
    """
    order = None if known is None else known.order
    clusters = centroids.shape[2]
    if by == "triton":
        from svoo.kernels.triton.centroids import update_centroids as by_triton

        order, sizes = known or sort_labels(labels, clusters)
        return Clusters(labels, by_triton(tokens, order, sizes, centroids), sizes, order)
    if by == "cpp":
        return Clusters(labels, *cpp.update_centroids(tokens, labels, centroids), order)
    batch, heads, _, size = tokens.shape
    rows = labels + clusters * torch.arange(batch * heads, device=labels.device).view(
        batch, heads, 1
    )
    sums = torch.zeros_like(centroids).view(-1, size)
    sums.index_add_(0, rows.flatten(), tokens.reshape(-1, size).to(centroids.dtype))
    sizes = torch.zeros(batch * heads * clusters, dtype=torch.int64, device=labels.device)
    sizes.scatter_add_(0, rows.flatten(), torch.ones_like(rows.flatten()))
    sizes = sizes.view(batch, heads, clusters)
    means = sums.view_as(centroids) / sizes.clamp(min=1).unsqueeze(-1)
    return Clusters(labels, torch.where(sizes.unsqueeze(-1) > 0, means, centroids), sizes, order)
