"""SVG2 (Sparse VideoGen2): k-means of queries and keys apart, key clusters by mass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from svoo.core.plan import BlockPlan, plan_from_clusters
from svoo.core.selection import select_blocks
from svoo.methods.base import Call, Method, Run
from svoo.methods.k_means import KMeansMethod, MassConfig


@dataclass(frozen=True, kw_only=True)
class SVG2Config(MassConfig):
    """Sparse VideoGen2 (arXiv 2505.18875; svg-project/Sparse-VideoGen 5ce7b01).

    Queries and keys are clustered apart by Euclidean k-means: `first_iterations` from random
    tokens at a layer's first call (it ends early once no centroid moves by 1e-4), `iterations`
    from the layer's last centroids at every later one; both guidance branches share them. A query
    cluster keeps key clusters in falling order of their coarse mass (softmax of centroid products,
    weighted by sizes) until `mass` is passed, and at least the fraction `floor` of them. The rest
    is dropped. `scale_clusters`: the counts are for 75,600 tokens, and fewer tokens get fewer.
    """

    name: ClassVar[str] = "svg2"

    def start(self, run: Run) -> Method:
        """Return the method for a new video."""
        return _SVG2Method(self, run)


class _SVG2Method(KMeansMethod[SVG2Config]):
    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:  # noqa: ARG002
        clusters = self.cluster(query, key, call)
        with call.watch("selection"):
            # With theta 1 no budget is above it: the larger of what mass and floor ask for.
            floors = torch.full((query.shape[1],), self.config.floor, device=query.device)
            keep = select_blocks(
                clusters,
                floors,
                mass=self.config.mass,
                theta=1.0,
                scale=call.scale,
                unit="whole clusters",
                check=False,
            )
            return plan_from_clusters(clusters, keep, compensate=False)
