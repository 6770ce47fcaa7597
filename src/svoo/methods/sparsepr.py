"""SparsePR: k-means in the other side's metric, a fixed number of keys, a repaired output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from svoo.catalogue import find_model
from svoo.core.block_errors import log_block_errors, log_block_masses
from svoo.core.cluster_counts import scale_clusters
from svoo.core.clustering import Clusters, CoClusters
from svoo.core.eigen import low_rank_root
from svoo.core.metric_kmeans import MetricKMeans, Projection
from svoo.core.plan import plan_from_clusters
from svoo.core.repair import choose_probes
from svoo.core.token_budget import spend_tokens
from svoo.core.validate import accumulation_dtype
from svoo.methods.base import (
    Call,
    Corrected,
    Method,
    Run,
    require_choice,
    require_count,
    require_share,
)
from svoo.methods.k_means import KMeansConfig
from svoo.methods.repaired import refuse_hidden_text, repaired
from svoo.methods.warm_up import SparseMethod

METRIC_TOKENS = 2048  # queries that the keys' metric is made from
KEY_RANK, QUERY_RANK = 48, 64  # of the metrics


@dataclass(frozen=True, kw_only=True)
class SparsePRConfig(KMeansConfig):
    """SparsePR (arXiv 2608.18484; PardisTaghavi/SparsePR ad2ae26 = PyPI sparsepr 0.1.0).

    Keys are clustered by k-means as the queries see them (k F, F F^T the rank-48 part of Q^T Q),
    queries as the key centroids see them (q G, G G^T the rank-64 part of the key centroids'
    covariance, every row scaled alike), `first_iterations` from random tokens, later `iterations`
    from the layer's last centroids. Every query cluster keeps the same number of keys, so that
    with the probes the share `density` of all pairs is computed: key clusters by their error per
    token (`score="error"`, as SVG-EAR) or their mass at the query centroid ("mass"). The rest is
    dropped. Then the output is repaired from `probes` exact rows by a fit of rank `rank`, see
    `core.repair`.
    """

    name: ClassVar[str] = "sparsepr"

    density: float = 0.22
    probes: int = 64
    rank: int = 16
    score: Literal["error", "mass"] = "error"
    first_iterations: int = 25
    dense_steps: int | float = 0.2
    dense_layers: int = 1

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        require_share("density", self.density)
        require_count("probes", self.probes, 1)
        require_count("rank", self.rank, 1)
        require_choice("score", self.score, ("error", "mass"))

    @classmethod
    def for_model(cls, model: str) -> Self:
        """Return the published settings, which are for HunyuanVideo and Wan 2.2; other models get
        the first's with their own warm-up."""
        known = find_model(model)
        score: Literal["error", "mass"] = "mass" if known.name.startswith("wan2.2") else "error"
        return cls(score=score, dense_steps=known.warm_up, dense_layers=known.dense_layers)

    @property
    def corrects_output(self) -> bool:
        """It does: by the repair."""
        return True

    def start(self, run: Run) -> Method:
        """Return the method for a new video."""
        return _SparsePRMethod(self, run)


class _SparsePRMethod(SparseMethod[SparsePRConfig]):
    """SparsePR over a run: a pair of centroid sets for every (stage, layer)."""

    def __init__(self, config: SparsePRConfig, run: Run) -> None:
        super().__init__(config, run)
        self._states: dict[tuple[str, int, int, int, int], MetricKMeans] = {}

    def check(self, call: Call) -> None:
        refuse_hidden_text(self.config.compensate, call)

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Corrected:
        config = self.config
        with call.watch("clustering"):
            clusters, features = self._cluster(query, key, call)
        with call.watch("selection"):
            if config.score == "error":
                scores = log_block_errors(clusters, key, value, scale=call.scale)
                scores -= clusters.key.sizes.to(scores.dtype).log().unsqueeze(2)
            else:
                scores = log_block_masses(clusters, key, scale=call.scale)
            probes = choose_probes(
                features, clusters.query.labels, clusters.query.sizes, config.probes
            )
            share = probes.rows.shape[2] / query.shape[2]
            text = 0 if call.layout is None else call.layout.text
            limit = math.ceil((config.density - share) * (key.shape[2] + text)) - text
            keep = spend_tokens(scores.nan_to_num(-torch.inf), clusters.key.sizes, max(1, limit))
            plan = plan_from_clusters(clusters, keep, compensate=False)
        call.count("selection", clusters.query.sizes.shape[2] / query.shape[2])
        return repaired((query, key, value), plan, probes, call, config.rank)

    def _cluster(self, query: Tensor, key: Tensor, call: Call) -> tuple[CoClusters, Tensor]:
        """Return clusters with raw-space centroids, and the queries as the keys see them."""
        dtype = accumulation_dtype(query)
        query, key = query.to(dtype), key.to(dtype)
        # As evenly as whole numbers go; all of them if there are fewer.
        indices = torch.linspace(0, query.shape[2] - 1, min(METRIC_TOKENS, query.shape[2]))
        shown = query.index_select(2, indices.round().long().to(query.device, non_blocking=True))
        seen_by = low_rank_root(shown.transpose(2, 3) @ shown, KEY_RANK)
        keys, _ = self._side("key", key, lambda tokens: tokens @ seen_by, call)
        filled = (keys.sizes > 0).unsqueeze(-1).to(dtype)
        middle = (keys.centroids * filled).sum(dim=2, keepdim=True)
        middle = middle / filled.sum(dim=2, keepdim=True)
        centred = (keys.centroids - middle) * filled
        sees = low_rank_root(centred.transpose(2, 3) @ centred, QUERY_RANK)
        queries, features = self._side(
            "query", query, lambda tokens: normalize(tokens @ sees, dim=-1), call
        )
        return CoClusters(queries, keys), features

    def _side(
        self, name: str, tokens: Tensor, project: Projection, call: Call
    ) -> tuple[Clusters, Tensor]:
        """Return one side's clusters with raw-space centroids, and its projected tokens."""
        config = self.config
        count = config.key_clusters if name == "key" else config.query_clusters
        if config.scale_clusters:
            count = scale_clusters(count, tokens.shape[2])
            if name == "query":  # each probe wants a cluster to speak for
                count = min(tokens.shape[2], max(count, config.probes))
        owner = name, call.stage, call.layer, call.sample, call.head_offset
        if owner not in self._states:
            self._states[owner] = MetricKMeans(config.first_iterations, config.iterations)
        videos, chance = call.videos(len(tokens)), call.chance(config.seed)
        seen = self._states[owner].cluster(tokens, project, count, videos, chance, call.heads)
        call.count("clustering", seen.rounds * count / tokens.shape[2])
        return seen.clusters, seen.features

    @property
    def state_bytes(self) -> int:
        return sum(state.nbytes for state in self._states.values())
