"""What SVOO remembers between calls: the labels of a layer's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from svoo.core.clustering import (
    CoClusters,
    co_cluster,
    default_clusters,
    far_fineness,
    from_labels,
)
from svoo.core.features import equal_labels
from svoo.core.kmeans import k_means
from svoo.methods.svoo.config import SVOOConfig

EQUAL_SIZES = 128, 64
"""Queries and keys in a cluster of equal size: whole tiles of the GPU kernels."""


@dataclass
class LabelState:
    """One layer's labels between calls, int16 where they fit, and the step that they were made at.

    The caller sets `step` before each call; labels of another shape are never used.
    """

    step: int = 0
    made_at: int = 0
    counts: tuple[int, int] = (0, 0)
    labels: tuple[Tensor, Tensor] | None = None

    def fits(self, query: Tensor, key: Tensor, videos: int) -> bool:
        """Return whether labels of so many videos are remembered for tokens of these shapes."""
        return self.labels is not None and all(
            kept.shape == (videos, *tokens.shape[1:3]) and kept.device == tokens.device
            for kept, tokens in zip(self.labels, (query, key), strict=True)
        )

    def is_fresh(
        self, query: Tensor, key: Tensor, recluster_every: int, videos: Sequence[int]
    ) -> bool:
        """Return whether the remembered labels serve this call, or new ones are due."""
        young = 0 <= self.step - self.made_at < recluster_every
        return young and self.fits(query, key, max(videos) + 1)

    def labels_of(self, videos: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return labels `[B, H, N]`, `[B, H, M]` (int64) for samples of these videos."""
        assert self.labels is not None
        in_order = list(videos) == list(range(len(self.labels[0])))  # picking them would copy them
        query, key = ((side if in_order else side[list(videos)]).long() for side in self.labels)
        return query, key

    def reuse(
        self, query: Tensor, key: Tensor, recluster_every: int, videos: Sequence[int] | None = None
    ) -> CoClusters | None:
        """Return clusters with the remembered labels and fresh centroids, or None if new ones are
        due. `videos` says which of the remembered videos each sample of the batch belongs to."""
        videos = range(len(query)) if videos is None else videos
        if not self.is_fresh(query, key, recluster_every, videos):
            return None
        return from_labels(query, key, *self.labels_of(videos), self.counts)

    def remember(self, clusters: CoClusters) -> None:
        """Keep the labels of new clusters."""
        counts = clusters.query.sizes.shape[2], clusters.key.sizes.shape[2]
        self.keep_labels(clusters.query.labels, clusters.key.labels, counts)

    def keep_labels(self, query: Tensor, key: Tensor, counts: tuple[int, int]) -> None:
        """Keep labels `[V, H, N]`, `[V, H, M]` of V videos."""
        narrow = [
            torch.int16 if count <= torch.iinfo(torch.int16).max else torch.int32
            for count in counts
        ]
        self.labels = query.to(narrow[0]), key.to(narrow[1])
        self.counts, self.made_at = counts, self.step

    @property
    def nbytes(self) -> int:
        """Bytes that the labels take."""
        return sum(side.nbytes for side in self.labels or ())


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


def cluster(
    query: Tensor, key: Tensor, config: SVOOConfig, generator: torch.Generator
) -> CoClusters:
    """Return new clusters of query `[B, H, N, D]` and key `[B, H, M, D]` as the config says."""
    if config.clustering == "balanced":
        counts = cluster_counts(config, query, key)
        return from_labels(query, key, *equal_labels(query, key, key, *counts), counts)
    make = co_cluster if config.clustering == "co" else k_means
    return make(
        query,
        key,
        *cluster_counts(config, query, key),
        iterations=config.iterations,
        generator=generator,
        check=False,
    )
