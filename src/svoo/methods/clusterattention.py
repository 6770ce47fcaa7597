"""ClusterAttention: equal-size clusters in the other side's metric, a fixed share of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from svoo.catalogue import find_model
from svoo.core.balanced import Balanced, split_evenly, square_root
from svoo.core.clustering import from_sorted
from svoo.core.plan import BlockPlan
from svoo.core.selection import keep_top
from svoo.core.sorting import SortedLabels
from svoo.core.validate import accumulation_dtype
from svoo.methods.base import (
    Call,
    Compensate,
    Method,
    MethodConfig,
    Run,
    require_count,
    require_share,
    require_switch,
)
from svoo.methods.warm_up import SparseMethod


@dataclass(frozen=True, kw_only=True)
class ClusterAttentionConfig(MethodConfig):
    """ClusterAttention (arXiv 2608.26965; no public code, so this is our reading of the paper).

    Per head and anew at every call, queries are split into clusters of exactly `query_block` and
    keys of `key_block` tokens (the last may be smaller). Keys are split as the queries see them,
    x = (Q^T Q)^(1/2) k; queries as the centred keys see them, y = (Kc^T Kc)^(1/2) q, scaled to
    length 1. Splitting: `core.balanced`, variances from as many random points as the head has
    channels, or from all with `exact_variance`. A query cluster keeps the share `keep` of the key
    clusters (rounded up) with the largest product of mean query and mean key. Left-out clusters
    enter the softmax as their means.
    """

    name: ClassVar[str] = "clusterattention"

    keep: float = 0.2
    query_block: int = 64
    key_block: int = 128
    exact_variance: bool = False
    dense_steps: int | float = 0.2
    dense_layers: int = 1
    compensate: Compensate = "mean"

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        require_share("keep", self.keep)
        require_count("query_block", self.query_block, 1)
        require_count("key_block", self.key_block, 1)
        require_switch("exact_variance", self.exact_variance)

    @classmethod
    def for_model(cls, model: str) -> Self:
        """Return the paper's settings, which it has for Wan 2.1 14B alone; a model says how many
        layers are dense."""
        return cls(dense_layers=find_model(model).dense_layers)

    def start(self, run: Run) -> Method:
        """Return the method for a new video."""
        return _ClusterAttentionMethod(self, run)


class _ClusterAttentionMethod(SparseMethod[ClusterAttentionConfig]):
    """ClusterAttention over a run: nothing is remembered."""

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:  # noqa: ARG002
        config = self.config
        sample = None if config.exact_variance else query.shape[3]
        chance = call.chance(config.seed)
        with call.watch("clustering"):
            seen_queries, seen_keys = in_each_others_metric(query, key)
            queries = split_evenly(
                seen_queries, config.query_block, sample=sample, generator=chance
            )
            keys = split_evenly(seen_keys, config.key_block, sample=sample, generator=chance)
        with call.watch("selection"):
            counts = len(queries.sizes), len(keys.sizes)
            query_side, key_side = (
                SortedLabels(side.order, _sizes(side, query)) for side in (queries, keys)
            )
            means = from_sorted(query, key, query_side, key_side)
            scores = means.query.centroids @ means.key.centroids.transpose(2, 3)
            keep = keep_top(scores, math.ceil(config.keep * counts[1] - 1e-9))
        orders, sizes = zip(query_side, key_side, strict=True)
        return BlockPlan(*orders, *sizes, keep, check=False)


def in_each_others_metric(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries `[B, H, N, D]` as the centred keys see them, of length 1, and keys `[B, H, M,
    D]` as the queries see them."""
    dtype = accumulation_dtype(query)
    query, key = query.to(dtype), key.to(dtype)
    centred = key - key.mean(dim=2, keepdim=True)
    seen_keys = key @ square_root(query.transpose(2, 3) @ query / query.shape[2])
    seen_queries = query @ square_root(centred.transpose(2, 3) @ centred)
    return torch.nn.functional.normalize(seen_queries, dim=-1), seen_keys


def _sizes(side: Balanced, tokens: Tensor) -> Tensor:
    sizes = torch.tensor(side.sizes).to(tokens.device, non_blocking=True)
    return sizes.expand(*tokens.shape[:2], len(side.sizes))
