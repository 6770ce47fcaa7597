"""AdaSpa (arXiv 2502.21079; no public code, so nothing could be compared): exact block sums of
attention at two steps, their best blocks in all others.

Blocks of 64 tokens in raster order. At the steps of `search_steps`, counted in a run of 50 and
scaled to others, attention is computed in full and the probabilities are summed over blocks; the
best (1 - sparsity) of each row are kept until the next search. Heads differ: with n = the heads
whose kept blocks hold more than `recall` of the probability (at most half of all), the n best get
sparsity (1 + s) / 2, the n worst (3 s - 1) / 2, so the mean stays. Dense before the first search.

A search costs half of a dense call (its products of queries and keys, not those with values), and
is counted as such. The paper's second search divides by the log-sum-exp of the first, which saves
it a pass; here rows are taken whole, so each search is exact in one pass. Sums are over video
keys. The call that searches runs with what it found. Masks belong to the video and the branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from svoo.core.block_sums import probability_sums
from svoo.core.heads import ALL_HEADS, Heads
from svoo.core.plan import BlockPlan
from svoo.core.selection import keep_top
from svoo.core.tiles import cut_evenly
from svoo.core.validate import default_scale
from svoo.methods.base import (
    Call,
    MethodConfig,
    Run,
    require,
    require_count,
    require_number,
)
from svoo.methods.warm_up import SparseMethod

_STEPS = 50  # of the run that search_steps counts in


@dataclass(frozen=True, kw_only=True)
class AdaSpaConfig(MethodConfig):
    """`sparsity` is the mean share of key blocks left out, `recall` what makes a head a good one;
    masks are made at the first sparse step and at each of `search_steps` of 50."""

    name: ClassVar[str] = "adaspa"

    sparsity: float = 0.8
    block: int = 64
    search_steps: tuple[int, ...] = (10, 30)
    recall: float = 0.8
    dense_steps: int | float = 0.2  # 10 of 50

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        require_number("sparsity", self.sparsity, 0, 1)
        require_number("recall", self.recall, 0, 1)
        require_count("block", self.block, 1)
        steps = self.search_steps
        fits = isinstance(steps, tuple) and all(isinstance(step, int) for step in steps)
        fits = fits and all(0 <= step < _STEPS for step in steps)
        require("search_steps", steps, f"steps of a run of {_STEPS}, from 0", fits=fits)

    def start(self, run: Run) -> AdaSpaMethod:
        """Return the method for a new video."""
        return AdaSpaMethod(self, run)


class AdaSpaMethod(SparseMethod[AdaSpaConfig]):
    """A mask for every (stage, layer, branch, sample, heads), and the step it was made at."""

    def __init__(self, config: AdaSpaConfig, run: Run) -> None:
        """Start with no mask."""
        super().__init__(config, run)
        self._searches = [round(step / _STEPS * run.steps) for step in config.search_steps]
        self._masks: dict[tuple[int, int, str, int, int], tuple[int, Tensor]] = {}

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:  # noqa: ARG002
        """Return the blocks of query, key `[B, H, N, D]` and which see which."""
        blocks = cut_evenly(query.shape[2], self.config.block, query.device)
        branch = call.branch if isinstance(call.branch, str) else " ".join(call.branch)
        owner = call.stage, call.layer, branch, call.sample, call.head_offset
        made, keep = self._masks.get(owner, (-1, None))
        due = any(made < step <= call.step for step in self._searches)
        if keep is None or due or keep.shape != (*query.shape[:2], blocks.count, blocks.count):
            with call.watch("selection"):
                sums = probability_sums(
                    query, key, self.config.block, default_scale(query, call.scale)
                )
                keep = choose_blocks(sums, self.config, call.heads)
            call.count("search", 0.5)
            self._masks[owner] = call.step, keep
        return blocks.plan(keep)

    @property
    def state_bytes(self) -> int:
        """Bytes of all masks."""
        return sum(keep.nbytes for _, keep in self._masks.values())


def choose_blocks(sums: Tensor, config: AdaSpaConfig, heads: Heads = ALL_HEADS) -> Tensor:
    """Return the best blocks of each row of sums `[B, H, Cq, Ck]`, more in heads that need more:
    bool `[B, H, Cq, Ck]`. Heads on other devices count too."""
    blocks, sparsity = sums.shape[3], config.sparsity

    def kept(share: float) -> int:
        return max(1, round(min(1.0, 1 - share) * blocks))

    first = keep_top(sums, kept(sparsity))
    recall = (sums * first).sum(dim=(2, 3)) / sums.sum(dim=(2, 3))  # [B, H]
    recall = heads.gather(recall.T.contiguous()).T  # of all heads
    count = recall.shape[1]
    good = (recall > config.recall).sum(dim=-1, keepdim=True).clamp(max=count // 2)
    ranks = recall.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    counts = torch.full_like(ranks, kept(sparsity))
    counts = torch.where(ranks < good, kept((1 + sparsity) / 2), counts)
    counts = torch.where(ranks >= count - good, kept((3 * sparsity - 1) / 2), counts)
    if count > sums.shape[1]:
        counts = heads.own(counts, sums.shape[1], dim=1)
    return keep_top(sums, counts[..., None, None])
