"""What the methods that cluster by warm-started k-means share: their settings, and the clusters of
a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, TypeVar

from torch import Tensor

from svoo.catalogue import find_model
from svoo.core.cluster_counts import scale_clusters
from svoo.core.clustering import CoClusters
from svoo.core.kmeans import WarmKMeans
from svoo.methods.base import (
    Call,
    MethodConfig,
    Run,
    require_count,
    require_number,
    require_share,
    require_switch,
)
from svoo.methods.warm_up import SparseMethod, sparse_videogen_warm_up


@dataclass(frozen=True, kw_only=True)
class KMeansConfig(MethodConfig):
    """Settings of k-means: the numbers of clusters, for 75,600 tokens (`scale_clusters`: fewer
    tokens get fewer), and the iterations of a layer's first call and of every later one."""

    query_clusters: int = 300
    key_clusters: int = 1000
    first_iterations: int = 50
    iterations: int = 2
    scale_clusters: bool = True

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        for name in ("query_clusters", "key_clusters", "first_iterations", "iterations"):
            require_count(name, getattr(self, name), 1)
        require_switch("scale_clusters", self.scale_clusters)

    def cluster_counts(self, query: Tensor, key: Tensor) -> tuple[int, int]:
        """Return the numbers of clusters for query `[B, H, N, D]` and key `[B, H, M, D]`."""
        if not self.scale_clusters:
            return self.query_clusters, self.key_clusters
        return (
            scale_clusters(self.query_clusters, query.shape[2]),
            scale_clusters(self.key_clusters, key.shape[2]),
        )


@dataclass(frozen=True, kw_only=True)
class MassConfig(KMeansConfig):
    """Settings of SVG2, which SVG-EAR has too: the coarse mass to cover, the fraction of the key
    clusters that is kept at least, and the warm-up."""

    mass: float = 0.9
    floor: float = 0.1
    dense_steps: int | float = 0.2
    dense_layers: int = 1

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        require_share("mass", self.mass)
        require_number("floor", self.floor, 0, 1)

    @classmethod
    def for_model(cls, model: str) -> Self:
        """Return the settings of the authors' script for a model."""
        queries = 400 if find_model(model).name.startswith("hunyuan") else 300
        return cls(query_clusters=queries, **sparse_videogen_warm_up(model))


Config = TypeVar("Config", bound=KMeansConfig)


class KMeansMethod(SparseMethod[Config]):
    """A method over a run with a pair of centroid sets for every (stage, layer)."""

    def __init__(self, config: Config, run: Run) -> None:
        """Start with no centroids."""
        super().__init__(config, run)
        self._states: dict[tuple[int, int, int, int], WarmKMeans] = {}

    def start_state(self) -> WarmKMeans:
        """Return the k-means of a layer that has seen no call."""
        return WarmKMeans(self.config.first_iterations, self.config.iterations)

    def cluster(self, query: Tensor, key: Tensor, call: Call) -> CoClusters:
        """Return the clusters of query `[B, H, N, D]` and key `[B, H, M, D]`, made from the
        layer's last centroids on; both guidance branches share them."""
        owner = call.stage, call.layer, call.sample, call.head_offset
        if owner not in self._states:
            self._states[owner] = self.start_state()
        with call.watch("clustering"):
            counts = self.config.cluster_counts(query, key)
            videos, chance = call.videos(len(query)), call.chance(self.config.seed)
            clusters, work = self._states[owner].cluster(
                query, key, counts, videos, chance, call.heads
            )
        call.count("clustering", work)
        return clusters

    @property
    def state_bytes(self) -> int:
        """Bytes of all centroids."""
        return sum(state.nbytes for state in self._states.values())
