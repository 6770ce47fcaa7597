"""SpargeAttn: fixed blocks, chosen by the attention of their means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from svoo.core.blocks import block_means, block_sums, plan_blocks
from svoo.core.plan import BlockPlan
from svoo.core.selection import WHOLE, keep_top, sort_falling, whole_shares
from svoo.core.validate import accumulation_dtype, default_scale
from svoo.methods.base import (
    Call,
    Method,
    MethodConfig,
    Run,
    require,
    require_count,
    require_number,
    require_switch,
)
from svoo.methods.warm_up import SparseMethod


@dataclass(frozen=True, kw_only=True)
class SpargeAttnConfig(MethodConfig):
    """SpargeAttn (arXiv 2502.18137; thu-ml/SpargeAttn bfd980b), without its quantisation and its
    second skip inside the kernel.

    Keys lose their mean (`smooth`). A block is self-similar if the mean cosine between its tokens
    is above `similarity`; with `judge_ragged=False` a ragged last one never is, as in their code.
    Each query block ranks the self-similar key blocks by the softmax of the means' logits and
    keeps the first `topk` share of all blocks, or (`cdf`) as many as have no more than that mass
    together; at least one. Key blocks that are not self-similar are kept by all, query blocks that
    are not see all. The authors' pairs are `topk=0.5, similarity=-0.1` and `cdf=0.98,
    similarity=0.6`; give exactly one of the two.
    """

    name: ClassVar[str] = "spargeattn"

    topk: float | None = 0.5
    cdf: float | None = None
    similarity: float = -0.1
    query_block: int = 128
    key_block: int = 64
    smooth: bool = True
    judge_ragged: bool = True

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        given = [name for name in ("topk", "cdf") if getattr(self, name) is not None]
        require("topk", self.topk, "None if cdf is given, and else a number", fits=len(given) == 1)
        require_number(given[0], getattr(self, given[0]), 0, 1)
        require_number("similarity", self.similarity, -1, 1)
        require_count("query_block", self.query_block, 1)
        require_count("key_block", self.key_block, 1)
        require_switch("smooth", self.smooth)
        require_switch("judge_ragged", self.judge_ragged)

    def start(self, run: Run) -> Method:
        """Return the method for a new video."""
        return _SpargeAttn(self, run)


class _SpargeAttn(SparseMethod[SpargeAttnConfig]):
    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:  # noqa: ARG002
        with call.watch("selection"):
            return self._choose(query, key, default_scale(query, call.scale))

    def _choose(self, query: Tensor, key: Tensor, scale: float) -> BlockPlan:
        config = self.config
        blocks = config.query_block, config.key_block
        query_means, key_means = (block_means(query, blocks[0]), block_means(key, blocks[1]))
        shift = None
        if config.smooth:
            shift = key.mean(dim=2, keepdim=True, dtype=accumulation_dtype(key))
            key_means = key_means - shift
        query_similar = self_similar(query, blocks[0], config.similarity)
        key_similar = self_similar(key, blocks[1], config.similarity, shift)
        if not config.judge_ragged:
            for side, similar, block in zip(
                (query, key), (query_similar, key_similar), blocks, strict=True
            ):
                if side.shape[2] % block:
                    similar[..., -1] = False
        key_similar = key_similar.unsqueeze(2)
        logits = query_means @ key_means.mT * scale
        masses = logits.masked_fill(~key_similar, -torch.inf).softmax(dim=-1)
        masses = masses.nan_to_num(0.0)  # a row without any self-similar block
        count: int | Tensor
        if config.topk is not None:
            count = max(1, int(config.topk * masses.shape[-1]))
        else:
            assert config.cdf is not None  # one of the two is given
            reached = whole_shares(sort_falling(masses)).cumsum(dim=-1)
            count = (
                (reached <= math.floor(config.cdf * WHOLE)).sum(dim=-1, keepdim=True).clamp(min=1)
            )
        keep = keep_top(masses, count) | ~key_similar | ~query_similar.unsqueeze(-1)
        return plan_blocks(keep, (query.shape[2], key.shape[2]), blocks)


def self_similar(
    tokens: Tensor, block: int, threshold: float, shift: Tensor | None = None
) -> Tensor:
    """Return which blocks of tokens `[B, H, N, D]` (minus `shift` `[B, H, 1, D]`) are
    self-similar, `[B, H, C]`: of a mean cosine above the threshold.

    The mean cosine of all pairs is the squared length of the sum of directions over the squared
    count, so it is not negative and a negative threshold needs no look.
    """
    lead, count = tokens.shape[:2], tokens.shape[2]
    sizes = (count - torch.arange(0, count, block, device=tokens.device)).clamp(max=block)
    if threshold < 0:
        return sizes.new_ones(*lead, len(sizes), dtype=torch.bool)
    wide = tokens.to(accumulation_dtype(tokens))
    directions = torch.nn.functional.normalize(wide if shift is None else wide - shift, dim=-1)
    length = block_sums(directions, block).square().sum(dim=-1)
    return length / sizes.square() > threshold
