"""Sol-Attn: fixed blocks whose mean logit stands out of its row; the rest as mean terms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from svoo.catalogue import find_model
from svoo.core.blocks import block_means, block_sizes, plan_blocks
from svoo.core.layout import VideoLayout
from svoo.core.morton import morton_order
from svoo.core.plan import BlockPlan
from svoo.core.terms import FarTerms, GroupTerms, MeanTerms, Terms
from svoo.core.validate import default_scale
from svoo.methods.base import (
    Call,
    Compensate,
    Method,
    MethodConfig,
    Run,
    require_choice,
    require_count,
    require_number,
)
from svoo.methods.warm_up import SparseMethod

_LEAST_VARIANCE = 1e-6 * math.log(2) ** 2  # theirs is 1e-6 for logits in units of log 2


@dataclass(frozen=True, kw_only=True)
class SolConfig(MethodConfig):
    """Sol-Attn (arXiv 2607.24027; NVlabs/Sana 5cebf61; comfy-kitchen 0.2.40).

    A block pair's score is the scaled product of its mean query and mean key. A query block keeps
    the key blocks whose score is above the mean of its row by more than `tau` times the row's
    spread, and its neighbours |i - j| <= 1. The spread comes from the variance of the mean keys
    along each axis ("diagonal") or from their covariance ("exact"). `topk` instead of `tau`, as
    comfy-kitchen: a share of the key blocks. `order="morton"` cuts the video into blocks along a
    Morton curve; "raster" leaves it as it is. `tail`: every left-out block is a mean term for each
    token ("tokens", NVIDIA's), the whole rest is one constant term per query block ("block",
    comfy-kitchen's), or it is dropped (None). It holds where `compensate="mean"`.
    """

    name: ClassVar[str] = "sol"

    tau: float = 1.0
    spread: Literal["diagonal", "exact"] = "diagonal"
    order: Literal["raster", "morton"] = "raster"
    tail: Literal["tokens", "block"] | None = "tokens"
    topk: float | None = None
    block: int = 64
    compensate: Compensate = "mean"
    dense_steps: int | float = 0.2
    dense_layers: int = 1

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require_number("tau", self.tau, -math.inf, math.inf)
        require_choice("spread", self.spread, ("diagonal", "exact"))
        require_choice("order", self.order, ("raster", "morton"))
        require_choice("tail", self.tail, ("tokens", "block", None))
        if self.topk is not None:
            require_number("topk", self.topk, 0, 1)
        require_count("block", self.block, 1)

    @classmethod
    def for_model(cls, model: str) -> Self:
        """Return NVIDIA's settings: a fifth of the steps and the first layer dense, Wan 2.1 along
        the Morton curve, HunyuanVideo without any warm-up."""
        known = find_model(model)
        if known.name.startswith("hunyuan"):
            return cls(dense_steps=0, dense_layers=0)
        order: Literal["raster", "morton"] = "raster"
        if known.name.startswith("wan2.1"):
            order = "morton"
        return cls(dense_layers=known.dense_layers, order=order)

    def start(self, run: Run) -> Method:
        """Return the method for a new video."""
        return _Sol(self, run)


class _Sol(SparseMethod[SolConfig]):
    def __init__(self, config: SolConfig, run: Run) -> None:
        super().__init__(config, run)
        self._orders: dict[tuple[int, int, int, torch.device], Tensor] = {}

    @property
    def state_bytes(self) -> int:
        return sum(order.nbytes for order in self._orders.values())

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:
        block, order = self.config.block, None
        tokens = query.shape[2], key.shape[2]
        with call.watch("selection"):
            if self.config.order == "morton":
                order = self._find_order(call.need_layout("sol"), query.device)
                query, key, value = (side.index_select(2, order) for side in (query, key, value))
            query_means, key_means = block_means(query, block), block_means(key, block)
            scale = default_scale(query, call.scale)
            middle = key_means.mean(dim=2, keepdim=True)
            scores = query_means @ (key_means - middle).mT * scale  # minus the mean of their row
            keep = self._choose(scores, query_means, key_means - middle, scale)
            terms = self._tail(scores, keep, value, middle)
            return plan_blocks(keep, tokens, (block, block), order=order, terms=terms)

    def _find_order(self, layout: VideoLayout, device: torch.device) -> Tensor:
        made_for = layout.frames, layout.height, layout.width, device
        if made_for not in self._orders:
            self._orders[made_for] = morton_order(layout, device)
        return self._orders[made_for]

    def _choose(
        self, scores: Tensor, query_means: Tensor, centred: Tensor, scale: float
    ) -> Tensor:
        """Return which key blocks are kept, bool `[B, H, Cq, Ck]`; `centred` are the mean keys
        minus their mean."""
        rows, columns = (torch.arange(count, device=scores.device) for count in scores.shape[2:])
        near = (rows[:, None] - columns).abs() <= 1
        if self.config.topk is not None:
            count = min(round(self.config.topk * len(columns)), len(columns) - 1)
            threshold = scores.topk(max(1, count), dim=-1).values[..., -1:]
            return (scores >= threshold) | near
        if self.config.spread == "diagonal":
            variance = query_means.square() @ centred.square().mean(dim=2).unsqueeze(-1)
        else:  # of centred keys, where theirs subtracts squares of almost equal size
            variance = (scores / scale).square().mean(dim=-1, keepdim=True)
        spread = (scale**2 * variance + _LEAST_VARIANCE).sqrt()
        return (scores > self.config.tau * spread) | near

    def _tail(self, scores: Tensor, keep: Tensor, value: Tensor, middle: Tensor) -> Terms | None:
        """Return what stands for the left-out blocks; None leaves it to what all methods do.

        comfy-kitchen's constant is one of centred keys: a token's own logit with their `middle`
        `[B, H, 1, D]` is part of it.
        """
        config = self.config
        if config.compensate != "mean" or config.tail == "tokens":
            return None
        if config.tail is None:
            return MeanTerms(keep.new_zeros(*keep.shape[:2], keep.shape[3]))
        sizes = block_sizes(value.shape[2], config.block, value.device)
        logits = (scores + sizes.log()).masked_fill(keep, -torch.inf)
        bias = logits.logsumexp(dim=-1, keepdim=True)
        weights = (logits - bias).exp().nan_to_num(0.0)  # a row that leaves nothing out
        values = (weights @ block_means(value, config.block)).unsqueeze(3).to(value.dtype)
        keys = middle.unsqueeze(3).expand_as(values).to(value.dtype)
        nothing = torch.zeros_like(keep)
        no_bias = torch.full(keep.shape, -torch.inf, device=keep.device)
        no_values = values.new_zeros(()).expand(*keep.shape, value.shape[3])
        return FarTerms(nothing, no_bias, no_values, GroupTerms(bias.float(), keys, values))
