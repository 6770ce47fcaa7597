"""What SVOO remembers between calls: the labels of a layer's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from svoo.core.clustering import CoClusters, from_labels


@dataclass
class LabelState:
    """One layer's labels between calls, int16 where they fit, and the step that they were made at.

    The caller sets `step` before each call; labels of another shape are never used.
    """

    step: int = 0
    made_at: int = 0
    counts: tuple[int, int] = (0, 0)
    labels: tuple[Tensor, Tensor] | None = None

    def reuse(
        self, query: Tensor, key: Tensor, recluster_every: int, videos: Sequence[int] | None = None
    ) -> CoClusters | None:
        """Return clusters with the remembered labels and fresh centroids, or None if new ones are
        due. `videos` says which of the remembered videos each sample of the batch belongs to."""
        if self.labels is None or not 0 <= self.step - self.made_at < recluster_every:
            return None
        videos = range(len(query)) if videos is None else videos
        for kept, tokens in zip(self.labels, (query, key), strict=True):
            expected = max(videos) + 1, *tokens.shape[1:3]
            if kept.shape != expected or kept.device != tokens.device:
                return None
        labels = self.labels
        if len(labels[0]) < len(query):  # samples of one video share its labels
            labels = labels[0][list(videos)], labels[1][list(videos)]
        return from_labels(query, key, *labels, self.counts)

    def remember(self, clusters: CoClusters) -> None:
        """Keep the labels of new clusters."""
        sides = (clusters.query, clusters.key)
        self.counts = clusters.query.sizes.shape[2], clusters.key.sizes.shape[2]
        narrow = [
            torch.int16 if count <= torch.iinfo(torch.int16).max else torch.int32
            for count in self.counts
        ]
        query, key = (side.labels.to(dtype) for side, dtype in zip(sides, narrow, strict=True))
        self.labels, self.made_at = (query, key), self.step

    @property
    def nbytes(self) -> int:
        """Bytes that the labels take."""
        return sum(side.nbytes for side in self.labels or ())
