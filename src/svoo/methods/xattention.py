"""XAttention: blocks ranked by sums along antidiagonals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from svoo.core.blocks import block_sums, plan_blocks
from svoo.core.plan import BlockPlan
from svoo.core.selection import keep_mass
from svoo.core.validate import accumulation_dtype, default_scale
from svoo.errors import ConfigError
from svoo.methods.base import (
    Call,
    Method,
    MethodConfig,
    Run,
    require_count,
    require_number,
)
from svoo.methods.warm_up import SparseMethod

_CHUNK = 1 << 24  # numbers of the coarse map held at a time


@dataclass(frozen=True, kw_only=True)
class XAttentionConfig(MethodConfig):
    """XAttention (arXiv 2503.16428; mit-han-lab/x-attention e379887).

    Queries and keys are taken in groups of `stride` tokens; two groups' logit is the mean of the
    `stride` products along their antidiagonal, of the i-th key and the i-th query from the end.
    Softmax over key groups, summed up into blocks. A query block keeps its key blocks from the
    largest on while the sum before is below `mass` of the whole, and always the first of the
    sequence. A partial last group is filled up with its last token.
    """

    name: ClassVar[str] = "xattention"

    block: int = 128
    stride: int = 8
    mass: float = 0.9

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require_count("block", self.block, 1)
        require_count("stride", self.stride, 1)
        require_number("mass", self.mass, 0, 1)
        if self.block % self.stride:
            raise ConfigError(
                f"block must be a multiple of stride = {self.stride}, got {self.block}"
            )

    def start(self, run: Run) -> Method:
        """Return the method for a new video."""
        return _XAttention(self, run)


class _XAttention(SparseMethod[XAttentionConfig]):
    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:  # noqa: ARG002
        config = self.config
        with call.watch("selection"):
            sums = block_masses(
                query, key, config.block, config.stride, default_scale(query, call.scale)
            )
            call.count("selection", 1 / config.stride)  # products, as a share of all pairs'
            keep = keep_mass(sums, config.mass, least=0)
            keep[..., 0] = True
            tokens = query.shape[2], key.shape[2]
            return plan_blocks(keep, tokens, (config.block, config.block))


def block_masses(query: Tensor, key: Tensor, block: int, stride: int, scale: float) -> Tensor:
    """Return how much coarse attention of each query block's groups goes to each key block,
    `[B, H, Cq, Ck]`, from query `[B, H, N, D]` and key `[B, H, M, D]`."""
    per_block = block // stride
    queries = _groups(query, stride).flip(3).flatten(3) * (scale / stride)
    keys = _groups(key, stride).flatten(3)
    groups = keys.shape[2]
    keys = pad(keys, (0, 0, 0, -groups % per_block))  # to whole blocks, which get no mass
    rows = max(1, _CHUNK // (keys[..., 0].numel() * per_block)) * per_block
    parts = []
    for chunk in queries.split(rows, dim=2):
        logits = chunk @ keys.mT
        logits[..., groups:] = -torch.inf
        weights = logits.sub_(logits.amax(dim=-1, keepdim=True)).exp_()
        sums = weights.unflatten(3, (-1, per_block)).sum(dim=4)
        parts.append(block_sums(sums / sums.sum(dim=-1, keepdim=True), per_block))
    return torch.cat(parts, dim=2)


def _groups(tokens: Tensor, stride: int) -> Tensor:
    """Return tokens `[B, H, N, D]` in groups `[B, H, G, stride, D]`, in at least float32; the last
    token fills up the last group."""
    wide = tokens.to(accumulation_dtype(tokens))
    missing = -tokens.shape[2] % stride
    last = wide[:, :, -1:].expand(-1, -1, missing, -1)
    groups: Tensor = torch.cat((wide, last), dim=2).unflatten(2, (-1, stride))
    return groups
