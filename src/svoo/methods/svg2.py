"""SVG2 (Sparse VideoGen2): k-means of queries and keys apart, key clusters by mass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from svoo.catalogue import find_model
from svoo.core.clustering import scale_clusters
from svoo.core.kmeans import WarmKMeans
from svoo.core.plan import BlockPlan, plan_from_clusters
from svoo.core.selection import select_blocks
from svoo.methods.base import (
    Call,
    Dense,
    Method,
    MethodConfig,
    Run,
    require,
    require_count,
    require_number,
    require_switch,
)
from svoo.methods.warm_up import sparse_videogen_warm_up, warm_up


@dataclass(frozen=True, kw_only=True)
class SVG2Config(MethodConfig):
    """Sparse VideoGen2 (arXiv 2505.18875; svg-project/Sparse-VideoGen 5ce7b01).

    Queries and keys are clustered apart by Euclidean k-means: `first_iterations` from random
    tokens at a layer's first call (it ends early once no centroid moves by 1e-4), `iterations`
    from the layer's last centroids at every later one; both guidance branches share them. A query
    cluster keeps key clusters in falling order of their coarse mass (softmax of centroid products,
    weighted by sizes) until `mass` is passed, and at least the fraction `floor` of them. The rest
    is dropped. `scale_clusters`: the counts are for 75,600 tokens, and fewer tokens get fewer.
    """

    name: ClassVar[str] = "svg2"

    query_clusters: int = 300
    key_clusters: int = 1000
    mass: float = 0.9
    floor: float = 0.1
    first_iterations: int = 50
    iterations: int = 2
    scale_clusters: bool = True
    dense_steps: int | float = 0.2
    dense_layers: int = 1

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        for name in ("query_clusters", "key_clusters", "first_iterations", "iterations"):
            require_count(name, getattr(self, name), 1)
        require_number("mass", self.mass, 0, 1)
        require("mass", self.mass, "a number above 0", fits=self.mass > 0)
        require_number("floor", self.floor, 0, 1)
        require_switch("scale_clusters", self.scale_clusters)

    @classmethod
    def for_model(cls, model: str) -> Self:
        """Return the settings of the authors' script for a model."""
        queries = 400 if find_model(model).name.startswith("hunyuan") else 300
        return cls(query_clusters=queries, **sparse_videogen_warm_up(model))

    def start(self, run: Run) -> Method:
        """Return the method for a new video."""
        return _SVG2Method(self, run)


class _SVG2Method:
    """SVG2 over a run: a pair of centroid sets for every (stage, layer)."""

    def __init__(self, config: SVG2Config, run: Run) -> None:
        self.config = config
        self.run = run
        self._states: dict[tuple[int, int, int, int], WarmKMeans] = {}

    def plan(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan | Dense:  # noqa: ARG002
        config = self.config
        dense = warm_up(config, self.run.steps, call)
        if dense is not None:
            return dense
        counts = config.query_clusters, config.key_clusters
        if config.scale_clusters:
            counts = (
                scale_clusters(counts[0], query.shape[2]),
                scale_clusters(counts[1], key.shape[2]),
            )
        place = call.stage, call.layer, call.sample, call.head_offset
        state = self._states.setdefault(
            place, WarmKMeans(config.first_iterations, config.iterations)
        )
        with call.watch("clustering"):
            videos, chance = call.videos(len(query)), call.chance(config.seed)
            clusters, work = state.cluster(query, key, counts, videos, chance)
        call.count("clustering", work)
        with call.watch("selection"):
            # With theta 1 no budget is above it: the larger of what mass and floor ask for.
            floors = torch.full((query.shape[1],), config.floor, device=query.device)
            keep = select_blocks(
                clusters,
                floors,
                mass=config.mass,
                theta=1.0,
                scale=call.scale,
                unit="whole clusters",
                check=False,
            )
            return plan_from_clusters(clusters, keep, compensate=False)

    @property
    def state_bytes(self) -> int:
        return sum(state.nbytes for state in self._states.values())
