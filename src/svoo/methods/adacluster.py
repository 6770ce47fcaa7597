"""AdaCluster, as its public code runs it: plain k-means, the best key clusters by their
centroids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from svoo.catalogue import find_model
from svoo.core.clustering import CoClusters
from svoo.core.kmeans import WarmKMeans
from svoo.core.plan import BlockPlan, plan_from_clusters
from svoo.core.selection import coarse_mass, keep_top
from svoo.methods.base import (
    Call,
    Method,
    Run,
    require,
    require_choice,
    require_count,
)
from svoo.methods.k_means import KMeansConfig, KMeansMethod


@dataclass(frozen=True, kw_only=True)
class AdaClusterConfig(KMeansConfig):
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

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        require_count("keep", self.keep, 1)
        expected = f"at most the {self.key_clusters} key clusters"
        require("keep", self.keep, expected, fits=self.keep <= self.key_clusters)
        require_choice("score", self.score, ("quest", "mass"))

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


class _AdaClusterMethod(KMeansMethod[AdaClusterConfig]):
    def start_state(self) -> WarmKMeans:
        config = self.config
        return WarmKMeans(
            config.first_iterations, config.iterations, tolerance=0.0, empty_to_zero=True
        )

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:  # noqa: ARG002
        config = self.config
        clusters = self.cluster(query, key, call)
        share = clusters.key.sizes.shape[2] / config.key_clusters
        with call.watch("selection"):
            scores = score_clusters(clusters, config.score, call.scale)
            keep = keep_best(scores, clusters, max(1, round(config.keep * share)))
            return plan_from_clusters(clusters, keep, compensate=False)


def score_clusters(
    clusters: CoClusters, score: Literal["quest", "mass"], scale: float | None
) -> Tensor:
    """Return what each query cluster thinks of each key cluster, `[B, H, Cq, Ck]`."""
    if score == "mass":
        return coarse_mass(clusters, scale=scale)
    query, key = clusters.query.centroids, clusters.key.centroids.transpose(2, 3)
    return query.clamp(min=0) @ key.clamp(min=0) + query.clamp(max=0) @ key.clamp(max=0)


def keep_best(scores: Tensor, clusters: CoClusters, count: int) -> Tensor:
    """Return the `count` best key clusters of each query cluster, the first of equals, empty ones
    last and never kept: bool `[B, H, Cq, Ck]`."""
    filled = (clusters.key.sizes > 0).unsqueeze(2)
    return keep_top(scores.masked_fill(~filled, -torch.inf), count) & filled
