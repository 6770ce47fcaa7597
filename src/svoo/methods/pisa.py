"""PISA: top-k of fixed blocks; the rest as mean terms with one first-order correction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

import torch
from torch import Tensor

from svoo.catalogue import find_model
from svoo.core.blocks import block_means, block_sizes, plan_blocks, split_blocks
from svoo.core.plan import BlockPlan
from svoo.core.selection import keep_top
from svoo.core.validate import accumulation_dtype, default_scale
from svoo.methods.base import (
    Call,
    Compensate,
    Corrected,
    Method,
    MethodConfig,
    Run,
    require_count,
    require_number,
    require_switch,
)
from svoo.methods.warm_up import SparseMethod

_CHUNK = 1 << 22  # logits of mean terms held at a time


@dataclass(frozen=True, kw_only=True)
class PISAConfig(MethodConfig):
    """PISA (arXiv 2602.01077; xie-lab-ml/piecewise-sparse-attention 8604494).

    Each query block keeps the `density` share of key blocks (at least one) with the largest
    product of mean query and mean key. A left-out block is a mean term, and with `first_order`
    the output gets left-out share of the softmax * scale / tokens * q H besides, where H is the
    sum over all blocks of (key - mean key) value^T. `bias`, theirs for images: the ranking adds
    the logarithm of the norm of the block's own H. `first_order` needs `compensate="mean"`.
    """

    name: ClassVar[str] = "pisa"

    density: float = 0.125
    first_order: bool = True
    bias: bool = False
    block: int = 64
    compensate: Compensate = "mean"
    dense_steps: int | float = 0.2
    dense_layers: int = 1

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require_number("density", self.density, 0, 1)
        require_switch("first_order", self.first_order)
        require_switch("bias", self.bias)
        require_count("block", self.block, 1)

    @classmethod
    def for_model(cls, model: str) -> Self:
        """Return the paper's settings: 15 (Wan 2.1 1.3B) or 10 of 50 steps dense, and the first
        layer."""
        known = find_model(model)
        steps = 0.3 if known.name.endswith("1.3b") else 0.2
        return cls(dense_steps=steps, dense_layers=known.dense_layers)

    @property
    def corrects_output(self) -> bool:
        """Whether the first-order term is added."""
        return self.first_order and self.compensate == "mean"

    def start(self, run: Run) -> Method:
        """Return the method for a new video."""
        return _PISA(self, run)


class _PISA(SparseMethod[PISAConfig]):
    def choose(
        self, query: Tensor, key: Tensor, value: Tensor, call: Call
    ) -> BlockPlan | Corrected:
        config = self.config
        scale = default_scale(query, call.scale)
        with call.watch("selection"):
            means = [block_means(side, config.block) for side in (query, key)]
            scores = means[0] @ means[1].mT * scale
            if config.bias:
                norms = _first_orders(key, value, config.block).flatten(3).norm(dim=-1)
                scores = scores + (norms + 1e-5).log().unsqueeze(2)
            keep = keep_top(scores, max(1, int(config.density * scores.shape[3])))
            tokens = query.shape[2], key.shape[2]
            plan = plan_blocks(keep, tokens, (config.block, config.block))
            if not config.corrects_output:
                return plan
            slope = _first_order(key, value, means[1], config.block) * (scale / tokens[1])
        correct = partial(_correct, query, means[1], keep, slope, scale, tokens[1], config.block)
        call.count("correction", query.shape[3] / tokens[1])  # H and q H, half a pair's work each
        return Corrected(plan, correct, extra=scores.shape[3] / tokens[1])  # logits of mean keys


def _first_order(key: Tensor, value: Tensor, key_means: Tensor, block: int) -> Tensor:
    """Return H `[B, H, D, D]`, the sum over tokens of (key - mean key of its block) value^T."""
    wide = accumulation_dtype(key)
    spread = split_blocks(key.to(wide), block) - key_means.unsqueeze(3)
    spread = spread.flatten(2, 3)[:, :, : key.shape[2]]
    return spread.mT @ value.to(wide)


def _first_orders(key: Tensor, value: Tensor, block: int) -> Tensor:
    """Return the part of H of each block, `[B, H, C, D, D]`; padding adds nothing, for its values
    are 0."""
    wide = accumulation_dtype(key)
    spread = split_blocks(key.to(wide), block) - block_means(key, block).unsqueeze(3)
    return spread.mT @ split_blocks(value.to(wide), block)


def _correct(
    query: Tensor,
    key_means: Tensor,
    keep: Tensor,
    slope: Tensor,
    scale: float,
    keys: int,
    block: int,
    output: Tensor,
    lse: Tensor,
) -> Tensor:
    """Return the output `[B, H, N, D]` plus each token's left-out share times q `slope`.

    The share is the sum of the token's mean terms in its softmax, whose log-sum-exp is `lse` `[B,
    H, N]`: none of them is above 1.
    """
    rows = max(1, _CHUNK // (keep[..., 0, :].numel() * block))
    sizes = block_sizes(keys, block, query.device)
    bias = torch.where(keep, -torch.inf, sizes.log().to(key_means.dtype)).unsqueeze(3)
    scaled = (key_means * scale).mT
    corrected = torch.empty_like(output)
    for first in range(0, keep.shape[2], rows):
        here = slice(first * block, (first + rows) * block)
        queries = query[:, :, here].to(key_means.dtype)
        terms = (queries @ scaled).sub_(lse[:, :, here].unsqueeze(-1))
        terms = split_blocks(terms, block).add_(bias[:, :, first : first + rows]).exp_()
        share = terms.sum(dim=-1).flatten(2)[:, :, : queries.shape[2]].unsqueeze(-1)
        corrected[:, :, here] = output[:, :, here] + share * (queries @ slope)
    return corrected
