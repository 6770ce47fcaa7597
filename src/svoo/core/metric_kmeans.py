"""k-means in a metric that changes from call to call: tokens are compared as something else sees
them, and what is remembered are the means of the tokens themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from svoo.core.clustering import Clusters, choose_implementation, update_centroids
from svoo.core.heads import ALL_HEADS, Heads
from svoo.core.kmeans import draw_with_replacement, group_by_distance, pick_samples

Projection = Callable[[Tensor], Tensor]


class Seen(NamedTuple):
    """Clusters with the means of raw tokens as centroids, the projected tokens `[B, H, N, F]`, and
    how many times they were assigned."""

    clusters: Clusters
    features: Tensor
    rounds: int


@dataclass
class MetricKMeans:
    """One side's k-means that goes on, at every call, from the centroids of the call before.

    The first call begins at random tokens (with replacement) and takes `first_iterations`, each
    later one `iterations`. Kept: one set of raw-space centroids per video.
    """

    first_iterations: int = 25
    iterations: int = 2
    centroids: Tensor | None = None  # [videos, H, C, D]

    def cluster(
        self,
        tokens: Tensor,
        project: Projection,
        count: int,
        videos: Sequence[int],
        generator: torch.Generator,
        heads: Heads = ALL_HEADS,
    ) -> Seen:
        """Return `count` clusters of tokens `[B, H, N, D]`, compared as `project` shows them.

        `videos` says which video each sample belongs to: samples of one video begin alike, and
        the last of them is remembered.
        """
        numbers = range(max(videos) + 1)
        start, rounds = self.centroids, self.iterations
        shape = (len(numbers), tokens.shape[1], count, tokens.shape[3])
        if start is None or start.shape != shape or start.device != tokens.device:
            rounds = self.first_iterations
            firsts = pick_samples(tokens, [list(videos).index(video) for video in numbers])
            start = draw_with_replacement(firsts, count, generator, heads)
        start = pick_samples(start, videos)
        features = project(tokens)
        made = group_by_distance(features, project(start), rounds).clusters
        by = choose_implementation(tokens, "auto")
        known = None if made.order is None else made.sorted()
        side = update_centroids(tokens, made.labels, start, by=by, known=known)
        last = {video: sample for sample, video in enumerate(videos)}
        self.centroids = pick_samples(side.centroids, [last[video] for video in numbers])
        return Seen(side, features, rounds)

    @property
    def nbytes(self) -> int:
        """Bytes of the centroids."""
        return 0 if self.centroids is None else self.centroids.nbytes
