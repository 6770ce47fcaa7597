"""SVG-EAR: SVG2's clusters, key clusters by the error that leaving them to their means makes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from svoo.core.block_errors import log_block_errors
from svoo.core.clustering import CoClusters
from svoo.core.plan import BlockPlan, plan_from_clusters
from svoo.core.selection import WHOLE, coarse_mass, whole_shares
from svoo.core.token_budget import spend_tokens
from svoo.methods.base import Call, Compensate, Method, Run, require_number
from svoo.methods.k_means import KMeansMethod, MassConfig


@dataclass(frozen=True, kw_only=True)
class SVGEARConfig(MassConfig):
    """SVG-EAR (arXiv 2603.08982; svg-project/Sparse-VideoGen 9b81185).

    Clusters as SVG2's. A query cluster may keep as many key tokens as the key clusters hold that
    cover `mass` (at least the first 2 `floor` of all clusters), in falling order of coarse mass.
    The first `floor` of them are kept; what is left of the tokens goes to the clusters with the
    largest error log E_ij - `gamma` log n_j, the last of which may overshoot. E_ij is the squared
    error of block j at the query centroid if its tokens were replaced by their means (see
    `core.block_errors`). Left-out clusters enter the softmax as their means.
    """

    name: ClassVar[str] = "svg-ear"

    gamma: float = 1.0
    compensate: Compensate = "mean"

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        require_number("gamma", self.gamma, 0, 10)

    def start(self, run: Run) -> Method:
        """Return the method for a new video."""
        return _SVGEARMethod(self, run)


class _SVGEARMethod(KMeansMethod[SVGEARConfig]):
    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:
        clusters = self.cluster(query, key, call)
        with call.watch("selection"):
            keep = select_by_error(clusters, key, value, self.config, call.scale)
        # Each query centroid with every key.
        call.count("selection", clusters.query.sizes.shape[2] / query.shape[2])
        return plan_from_clusters(clusters, keep, compensate=False)  # Session adds the means


def select_by_error(
    clusters: CoClusters, key: Tensor, value: Tensor, config: SVGEARConfig, scale: float | None
) -> Tensor:
    """Return the key clusters that each query cluster keeps, bool `[B, H, Cq, Ck]`, for key, value
    `[B, H, M, D]`."""
    mass, sizes = coarse_mass(clusters, scale=scale), clusters.key.sizes
    order = mass.argsort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(order.shape[-1], device=order.device)
    reached = whole_shares(mass).gather(-1, order).cumsum(dim=-1)
    count = (reached < math.ceil(config.mass * WHOLE)).sum(dim=-1, keepdim=True) + 1
    if config.floor > 0:
        count = count.clamp(min=max(1, int(2 * config.floor * len(ranks))))
    sorted_sizes = sizes.unsqueeze(2).expand(order.shape).gather(-1, order)
    certain = ranks < max(1, int(config.floor * len(ranks)))
    tokens = torch.where((ranks < count) & ~certain, sorted_sizes, 0).sum(dim=-1)
    kept = torch.zeros_like(order, dtype=torch.bool).scatter_(
        -1, order, certain.expand(order.shape)
    )
    errors = log_block_errors(clusters, key, value, scale=scale)
    ranking = errors - config.gamma * sizes.to(errors.dtype).log().unsqueeze(2)
    ranking = ranking.nan_to_num(-torch.inf, torch.inf, -torch.inf)  # empty: -inf + inf
    # The certain ones come first and are paid for: what is left after them is spent.
    paid = torch.where(kept, sizes.unsqueeze(2), 0).sum(dim=-1)
    return spend_tokens(ranking.masked_fill(kept, torch.inf), sizes, paid + tokens) | (
        kept & (sizes > 0).unsqueeze(2)
    )
