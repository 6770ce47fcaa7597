"""What SVOO remembers between calls: the labels of a layer's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from svoo.core.cluster_counts import default_clusters, far_fineness
from svoo.core.clustering import CoClusters, co_cluster, from_sorted
from svoo.core.features import FEATURES, equal_labels
from svoo.core.kmeans import k_means
from svoo.core.sorting import SortedLabels, sort_sides
from svoo.methods.svoo.config import SVOOConfig

EQUAL_SIZES = 128, 64
"""Queries and keys in a cluster of equal size: whole tiles of the GPU kernels."""


@dataclass
class LabelState:
    """What SVOO remembers of a layer between calls: the cluster of each token, and since when.

    Set `step` before each call of `svoo.sparse_attention`; labels that are too old, or of another
    shape, are not used. Kept are the tokens in the order of their clusters, in int16 where that
    fits, else int32, so that no call has to sort them again.
    """

    step: int = 0
    made_at: int = 0
    sides: tuple[SortedLabels, SortedLabels] | None = None

    def fits(self, query: Tensor, key: Tensor, videos: int) -> bool:
        """Return whether labels of so many videos are remembered for tokens of these shapes."""
        return self.sides is not None and all(
            kept.order.shape == (videos, *tokens.shape[1:3]) and kept.order.device == tokens.device
            for kept, tokens in zip(self.sides, (query, key), strict=True)
        )

    def is_fresh(
        self, query: Tensor, key: Tensor, recluster_every: int, videos: Sequence[int]
    ) -> bool:
        """Return whether the remembered labels serve this call, or new ones are due."""
        young = 0 <= self.step - self.made_at < recluster_every
        return young and self.fits(query, key, max(videos) + 1)

    def sides_of(self, videos: Sequence[int]) -> tuple[SortedLabels, SortedLabels]:
        """Return the labels of queries and keys, int64, for samples of these videos."""
        assert self.sides is not None
        query, key = (side.of_samples(videos) for side in self.sides)
        return query, key

    def reuse(
        self, query: Tensor, key: Tensor, recluster_every: int, videos: Sequence[int] | None = None
    ) -> CoClusters | None:
        """Return clusters with the remembered labels and fresh centroids, or None if new ones are
        due. `videos` says which of the remembered videos each sample of the batch belongs to."""
        videos = range(len(query)) if videos is None else videos
        if not self.is_fresh(query, key, recluster_every, videos):
            return None
        return from_sorted(query, key, *self.sides_of(videos))

    def remember(self, clusters: CoClusters) -> CoClusters:
        """Keep the labels of new clusters; return these with the orders that were found."""
        query, key = (
            replace(side, order=side.sorted().order) for side in (clusters.query, clusters.key)
        )
        self.keep(query.sorted(), key.sorted())
        return CoClusters(query, key)

    def keep(self, query: SortedLabels, key: SortedLabels) -> None:
        """Keep the sorted labels of some videos' queries and keys."""
        self.sides, self.made_at = (query.narrowed(), key.narrowed()), self.step

    @property
    def nbytes(self) -> int:
        """Bytes that the orders and sizes take."""
        return sum(side.nbytes for side in self.sides or ())


def cluster_counts(config: SVOOConfig, query: Tensor, key: Tensor) -> tuple[int, int]:
    """Return the numbers of query and key clusters: the config's, or by the numbers of tokens."""
    tokens = query.shape[2], key.shape[2]
    if config.clustering == "balanced":
        blocks = [-(-count // size) for count, size in zip(tokens, EQUAL_SIZES, strict=True)]
    else:
        blocks = [
            default_clusters(count, config.fineness or far_fineness(count))[side]
            for side, count in enumerate(tokens)
        ]
    return config.query_clusters or blocks[0], config.key_clusters or blocks[1]


def clustering_work(query: Tensor, key: Tensor, config: SVOOConfig, rounds: int) -> float:
    """Return the products of tokens and centroids in so many rounds, as a share of those of all
    pairs: k-means sees few features, co-clusters whole tokens, equal blocks none."""
    if config.clustering == "balanced":
        return 0.0
    size = query.shape[3]
    width = min(FEATURES, size) if config.clustering == "kmeans" else size
    counts = cluster_counts(config, query, key)
    shares = (count / side.shape[2] for count, side in zip(counts, (key, query), strict=True))
    return rounds * sum(shares) * width / size


def cluster(
    query: Tensor, key: Tensor, config: SVOOConfig, generator: torch.Generator
) -> CoClusters:
    """Return new clusters of query `[B, H, N, D]` and key `[B, H, M, D]` as the config says."""
    if config.clustering == "balanced":
        counts = cluster_counts(config, query, key)
        labels = equal_labels(query, key, key, *counts)
        return from_sorted(query, key, *sort_sides(labels, counts))
    make = co_cluster if config.clustering == "co" else k_means
    return make(
        query,
        key,
        *cluster_counts(config, query, key),
        iterations=config.iterations,
        generator=generator,
        check=False,
    )
