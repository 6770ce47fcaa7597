"""DSV's choice of keys (arXiv 2502.07590; NetX-lab/DSV, branch ae df731dc), without its training.

Queries come in groups of 32 in raster order; the token in the middle of a group speaks for it, and
keeps the key *tokens* with the largest products in a space of low rank: int((1 - sparsity) M) of
them, rounded to a multiple of 32, at least 32. The authors train a projection of the hidden states
into that space, together with the model. Untrained it would be chance, so here q and k themselves
are projected: onto the `rank` directions that hold most of their products (the leading singular
vectors of Q K^T, K without its mean, which no choice depends on). Their training also measures how
sparse each layer is and leaves layers dense that are not; here one sparsity is given for all.

Key blocks are single tokens, so a plan has N / 32 x M entries (7 MB for 4 heads at 7,488 tokens,
180 MB per head at 75,600: heads are planned a few at a time), and a backend gathers keys one by
one: a call costs more than its density says. Products equal to the last one kept are kept too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from svoo.core.eigen import eigen
from svoo.core.plan import BlockPlan
from svoo.core.selection import least_of_best
from svoo.core.tiles import TokenBlocks, cut_evenly
from svoo.core.validate import accumulation_dtype
from svoo.methods.base import Call, MethodConfig, Run, require_count, require_number
from svoo.methods.warm_up import SparseMethod

_ENTRIES = 1 << 28  # of plans held at a time


@dataclass(frozen=True, kw_only=True)
class DSVConfig(MethodConfig):
    """`sparsity` is the share of key tokens that a group of `group` queries leaves out; `rank` is
    the size of the space in which products are compared."""

    name: ClassVar[str] = "dsv"

    sparsity: float = 0.87
    group: int = 32
    rank: int = 16

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        require_number("sparsity", self.sparsity, 0, 1)
        require_count("group", self.group, 1)
        require_count("rank", self.rank, 1)

    def start(self, run: Run) -> DSVMethod:
        """Return the method for a new video."""
        return DSVMethod(self, run)


class DSVMethod(SparseMethod[DSVConfig]):
    """The best keys for each group of queries, fresh at every call."""

    def heads_per_plan(self, query: Tensor, key: Tensor) -> int:
        """Return how many heads are planned at a time, so that their plan stays small."""
        groups = -(-query.shape[2] // self.config.group)
        return max(1, _ENTRIES // (query.shape[0] * groups * key.shape[2]))

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:  # noqa: ARG002
        """Return the keys that groups of query `[B, H, N, D]` see of key `[B, H, M, D]`."""
        config = self.config
        groups = cut_evenly(query.shape[2], config.group, query.device)
        with call.watch("selection"):
            low_query, low_key = project(query, key, config.rank)
            keep = choose_keys(low_query, low_key, groups, config.sparsity)
        share = min(config.rank, query.shape[3]) / query.shape[3] / 2  # no product with values
        call.count("selection", groups.count / groups.tokens * share)
        lead = query.shape[:2]
        ones = torch.ones(1, dtype=torch.int64, device=query.device)
        return BlockPlan(
            None,
            None,
            groups.sizes_tensor.expand(*lead, -1),
            ones.expand(*lead, key.shape[2]),
            keep,
            check=False,
            query_tokens=query.shape[2],
            key_tokens=key.shape[2],
        )


def count_keys(tokens: int, sparsity: float) -> int:
    """Return how many of so many key tokens are kept: a multiple of 32, at least 32, at most
    all."""
    return min(tokens, max(32, round(int(tokens * (1 - sparsity)) / 32) * 32))


def choose_keys(query: Tensor, key: Tensor, groups: TokenBlocks, sparsity: float) -> Tensor:
    """Return the keys `[B, H, M, r]` of largest product with the middle token of each group of
    query `[B, H, N, r]`: bool `[B, H, G, M]`."""
    middle = groups.starts + groups.sizes_tensor // 2
    speakers, count = query.index_select(2, middle), count_keys(key.shape[2], sparsity)
    # On a CPU one head at a time: fresh memory costs more than the products.
    group = 1 if query.device.type == "cpu" else query.shape[1]
    parts = []
    for some, keys in zip(speakers.split(group, dim=1), key.split(group, dim=1), strict=True):
        scores = some @ keys.mT
        parts.append(scores >= least_of_best(scores, count))
    return torch.cat(parts, dim=1)


def project(query: Tensor, key: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return query `[B, H, N, D]` and key `[B, H, M, D]` in `rank` dimensions, `[B, H, N, r]` and
    `[B, H, M, r]`, such that their products are the best approximation of Q (K - mean)^T.

    With Q^T Q = A A^T and A^T (K^T K) A = U S U^T, the leading columns of U: q A^-T U and k A U.
    """
    dtype = accumulation_dtype(query)
    q, k = query.to(dtype), key.to(dtype)
    if rank >= query.shape[3]:
        return q, k
    k = k - k.mean(dim=2, keepdim=True)
    values, vectors = eigen(q.mT @ q)
    floor = values[..., -1:].clamp(min=torch.finfo(dtype).tiny) * torch.finfo(dtype).eps
    roots = values.clamp(min=floor).sqrt().unsqueeze(-2)
    factor = vectors * roots  # A
    inverse = vectors / roots  # A^-T
    leading = eigen(factor.mT @ (k.mT @ k) @ factor).vectors[..., -rank:]
    return q @ (inverse @ leading), k @ (factor @ leading)
