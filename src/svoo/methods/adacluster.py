"""AdaCluster, as its public code runs it: plain k-means, the best key clusters by their
centroids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from svoo.catalogue import find_model
from svoo.core.clustering import CoClusters, scale_clusters
from svoo.core.kmeans import WarmKMeans
from svoo.core.plan import BlockPlan, plan_from_clusters
from svoo.core.selection import coarse_mass
from svoo.methods.base import (
    Call,
    Dense,
    Method,
    MethodConfig,
    Run,
    require,
    require_choice,
    require_count,
    require_switch,
)
from svoo.methods.warm_up import warm_up


@dataclass(frozen=True, kw_only=True)
class AdaClusterConfig(MethodConfig):
    """AdaCluster (CVPR 2026, arXiv 2604.18348; USTC-MLSys-Team/Adacluster e7bed1c).

    The rule of its code, which is not its paper's: queries and keys are clustered apart by k-means
    (`first_iterations`, then `iterations` from the layer's last centroids; an empty cluster's
    centroid becomes 0), and a query cluster keeps `keep` of the `key_clusters`. `score="quest"`
    ranks by sum_d max(q, 0) max(c, 0) + min(q, 0) min(c, 0) of the two centroids (products of
    unlike sign count as 0), "mass" by the softmax of centroid products weighted by sizes. The rest
    is dropped. The staged clusters, from which its Wan code takes the number of key clusters, and
    the normalisation of queries are not here. `scale_clusters`: the counts are for 75,600 tokens,
    and fewer tokens get fewer.
    """

    name: ClassVar[str] = "adacluster"

    query_clusters: int = 250
    key_clusters: int = 1243
    keep: int = 94
    score: Literal["quest", "mass"] = "quest"
    first_iterations: int = 3
    iterations: int = 1
    scale_clusters: bool = True

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        for name in ("query_clusters", "key_clusters", "keep", "first_iterations", "iterations"):
            require_count(name, getattr(self, name), 1)
        expected = f"at most the {self.key_clusters} key clusters"
        require("keep", self.keep, expected, fits=self.keep <= self.key_clusters)
        require_choice("score", self.score, ("quest", "mass"))
        require_switch("scale_clusters", self.scale_clusters)

    @classmethod
    def for_model(cls, model: str) -> Self:
        """Return the settings of the authors' code: HunyuanVideo's, with its dense steps (8 of 30)
        and 18 first layers; for others those of Wan, which has no dense call."""
        if find_model(model).name.startswith("hunyuan"):
            return cls(dense_steps=8 / 30, dense_layers=18)
        return cls(keep=128, score="mass")

    def start(self, run: Run) -> Method:
        """Return the method for a new video."""
        return _AdaClusterMethod(self, run)


class _AdaClusterMethod:
    """AdaCluster over a run: a pair of centroid sets for every (stage, layer)."""

    def __init__(self, config: AdaClusterConfig, run: Run) -> None:
        self.config = config
        self.run = run
        self._states: dict[tuple[int, int, int, int], WarmKMeans] = {}

    def plan(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan | Dense:  # noqa: ARG002
        config = self.config
        dense = warm_up(config, self.run.steps, call)
        if dense is not None:
            return dense
        counts, count = (config.query_clusters, config.key_clusters), config.keep
        if config.scale_clusters:
            counts = (
                scale_clusters(counts[0], query.shape[2]),
                scale_clusters(counts[1], key.shape[2]),
            )
            count = max(1, round(config.keep * counts[1] / config.key_clusters))
        place = call.stage, call.layer, call.sample, call.head_offset
        kept = WarmKMeans(
            config.first_iterations, config.iterations, tolerance=0.0, empty_to_zero=True
        )
        state = self._states.setdefault(place, kept)
        with call.watch("clustering"):
            videos, chance = call.videos(len(query)), call.chance(config.seed)
            clusters, work = state.cluster(query, key, counts, videos, chance)
        call.count("clustering", work)
        with call.watch("selection"):
            keep = keep_top(score_clusters(clusters, config.score, call.scale), clusters, count)
            return plan_from_clusters(clusters, keep, compensate=False)

    @property
    def state_bytes(self) -> int:
        return sum(state.nbytes for state in self._states.values())


def score_clusters(
    clusters: CoClusters, score: Literal["quest", "mass"], scale: float | None
) -> Tensor:
    """Return what each query cluster thinks of each key cluster, `[B, H, Cq, Ck]`."""
    if score == "mass":
        return coarse_mass(clusters, scale=scale)
    query, key = clusters.query.centroids, clusters.key.centroids.transpose(2, 3)
    return query.clamp(min=0) @ key.clamp(min=0) + query.clamp(max=0) @ key.clamp(max=0)


def keep_top(scores: Tensor, clusters: CoClusters, count: int) -> Tensor:
    """Return the `count` best key clusters of each query cluster, the first of equals, empty ones
    last and never kept: bool `[B, H, Cq, Ck]`."""
    filled = (clusters.key.sizes > 0).unsqueeze(2)
    ranked = scores.masked_fill(~filled, -torch.inf)
    best = ranked.argsort(dim=-1, descending=True, stable=True)[..., :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, value=True) & filled
