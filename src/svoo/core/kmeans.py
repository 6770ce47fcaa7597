"""Euclidean k-means of one side or both: cold or from the centroids of an earlier call, with a
stop where nothing moves any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from svoo.core.clustering import (
    Centroids,
    Clusters,
    CoClusters,
    Implementation,
    assign_tokens,
    centred,
    choose_implementation,
    first_alike,
    start_centroids,
    update_centroids,
)
from svoo.core.heads import ALL_HEADS, Heads
from svoo.core.validate import accumulation_dtype, inference_only

_LOOK_EVERY = 5  # iterations between two looks at a device that would have to be waited for


@dataclass(frozen=True)
class Grouped:
    """The clusters of one side, and how many times its tokens were assigned to make them."""

    clusters: Clusters
    rounds: int


@inference_only
def k_means(
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
    """Group each side by Euclidean distance on its own: SVG2's partition, the paper's "w/o On"
    ablation.

    Shapes, start, empty clusters and `implementation` as in `co_cluster`.
    """
    centroids = start_centroids(
        query, key, query_clusters, key_clusters, iterations, initial, generator, check=check
    )
    sides = (
        group_by_distance(tokens, start, iterations, implementation=implementation).clusters
        for tokens, start in zip((query, key), centroids, strict=True)
    )
    return CoClusters(*sides)


@inference_only
def group_by_distance(
    tokens: Tensor,
    start: Tensor,
    iterations: int,
    *,
    tolerance: float = 0.0,
    empty_to_zero: bool = False,
    heads: Heads = ALL_HEADS,
    implementation: Implementation = "auto",
) -> Grouped:
    """Group tokens `[B, H, N, D]` around centroids that begin at `start` `[B, H, C, D]`.

    A token goes to the nearest centroid, the first of equals; a centroid becomes the mean of its
    tokens; one without any stays, or becomes 0 with `empty_to_zero`. Labels and sizes belong to
    the centroids before the last update. Once no centroid of any head moves by `tolerance` (0:
    never), all stay as they were before that update, and it is over. `heads`: where they are.
    """
    by = choose_implementation(tokens, implementation)
    centroids = start.to(accumulation_dtype(tokens))
    over = torch.zeros((), dtype=torch.bool, device=tokens.device)
    clusters, rounds = None, 0
    for number in range(1, iterations + 1):
        # argmin |x - c|^2 = argmax <x, c> - |c|^2 / 2
        bias = -0.5 * centroids.square().sum(dim=-1)
        labels = assign_tokens(tokens, centred(centroids), bias, by=by)
        if by == "torch":
            labels = first_alike(centroids, labels)
        clusters = update_centroids(tokens, labels, centroids, by=by)
        moved, rounds = clusters.centroids, number
        if empty_to_zero:
            moved = torch.where(clusters.sizes.unsqueeze(-1) > 0, moved, 0)
        if tolerance > 0:
            # Where it is over, further rounds repeat the last one: nobody has to wait for this.
            shift = (moved - centroids).norm(dim=-1).transpose(0, 1)
            over = over | (heads.largest(shift) < tolerance)
            moved = torch.where(over, centroids, moved)
        centroids = moved
        looks = tokens.device.type == "cpu" or number % _LOOK_EVERY == 0
        if tolerance > 0 and looks and number < iterations and bool(over):
            break
    assert clusters is not None  # at least one iteration
    return Grouped(replace(clusters, centroids=centroids), rounds)


def draw_with_replacement(
    tokens: Tensor, count: int, generator: torch.Generator, heads: Heads = ALL_HEADS
) -> Tensor:
    """Return `count` random tokens of each head of `[B, H, N, D]`, perhaps some twice: `[B, H,
    count, D]`."""
    drawn = heads.draw_indices(tokens, count, generator).unsqueeze(-1)
    return tokens.gather(2, drawn.expand(-1, -1, -1, tokens.shape[3]))


@dataclass
class WarmKMeans:
    """k-means of both sides that goes on, at every call, from the centroids of the call before.

    The first call begins at random tokens (with replacement) and takes `first_iterations`, each
    later one `iterations`. Kept: one set of centroids per video.
    """

    first_iterations: int = 50
    iterations: int = 2
    tolerance: float = 1e-4
    empty_to_zero: bool = False
    centroids: dict[str, Tensor] = field(default_factory=dict)

    def cluster(
        self,
        query: Tensor,
        key: Tensor,
        counts: tuple[int, int],
        videos: Sequence[int],
        generator: torch.Generator,
        heads: Heads = ALL_HEADS,
    ) -> tuple[CoClusters, float]:
        """Return the clusters of query `[B, H, N, D]` and key `[B, H, M, D]`, and the products of
        tokens and centroids that they took as a share of N x M.

        `videos` says which video each sample belongs to: samples of one video begin alike, and
        the last of them is remembered.
        """
        first = [tuple(videos).index(video) for video in dict.fromkeys(videos)]
        last = {video: sample for sample, video in enumerate(videos)}
        sides, work = [], 0.0
        for name, tokens, count in zip(("query", "key"), (query, key), counts, strict=True):
            start = self._remembered(name, tokens, count, videos)
            rounds = self.iterations
            if start is None:
                rounds = self.first_iterations
                firsts = pick_samples(tokens, first)
                drawn = draw_with_replacement(firsts, count, generator, heads)
                start = pick_samples(drawn, videos)
            made = group_by_distance(
                tokens,
                start,
                rounds,
                tolerance=self.tolerance,
                empty_to_zero=self.empty_to_zero,
                heads=heads,
            )
            self.centroids[name] = pick_samples(
                made.clusters.centroids, [last[v] for v in sorted(last)]
            )
            sides.append(made.clusters)
            others = key if name == "query" else query
            work += made.rounds * count / others.shape[2]
        return CoClusters(*sides), work

    def _remembered(
        self, name: str, tokens: Tensor, count: int, videos: Sequence[int]
    ) -> Tensor | None:
        kept = self.centroids.get(name)
        expected = (max(videos) + 1, tokens.shape[1], count, tokens.shape[3])
        if kept is None or kept.shape != expected or kept.device != tokens.device:
            return None
        return pick_samples(kept, videos)

    @property
    def nbytes(self) -> int:
        """Bytes of the centroids."""
        return sum(side.nbytes for side in self.centroids.values())


def pick_samples(tensor: Tensor, samples: Sequence[int]) -> Tensor:
    """Return some samples of `[B, ...]` by their indices; the tensor itself where that is all."""
    if list(samples) == list(range(len(tensor))):
        return tensor
    return tensor[list(samples)]
