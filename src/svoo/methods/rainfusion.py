"""RainFusion (arXiv 2505.21036; Celeste-jq/Wan2.2 5529105): a band along the diagonal, in the
order of tokens that suits the head.

The first frame goes behind the others and is dense both ways. The rest is cut into blocks of 128,
in the order (h, w, t) for a local head and (t, h, w) for a global one; block i sees block j if
|i - j| < p. With b = round(1 - sqrt(sparsity), 2), T frames of n tokens: p = floor(b n / 128)
(T - 1) for local heads, floor(b (T - 1) n / 128) for global ones, at least 1 (theirs can come out
as 0 on small frames). A head is classified at each call by how much of its attention falls into a
band of +- int(b n) tokens: rl among the n tokens of frame 1, rg among every (T - 1)-th token of
frames 1 ... T - 1. Local: rl > 0.95 or rl > rg. The paper's third class, textural heads, is in no
public code, and not here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from svoo.core.plan import BlockPlan
from svoo.core.tiles import Grid, PerGrid, TokenBlocks, axes_order, cut_evenly, first_frame_last
from svoo.core.validate import accumulation_dtype, default_scale
from svoo.methods.base import (
    Call,
    MethodConfig,
    Run,
    require_count,
    require_number,
)
from svoo.methods.warm_up import SparseMethod

_CHUNK = 1 << 22  # logits held at a time


@dataclass(frozen=True, kw_only=True)
class RainFusionConfig(MethodConfig):
    """`sparsity` sets the width of the band; a head whose band holds more than `local` of the
    attention inside a frame is local."""

    name: ClassVar[str] = "rainfusion"

    sparsity: float = 0.64
    local: float = 0.95
    block: int = 128
    dense_steps: int | float = 0.375  # 15 of 40

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        require_number("sparsity", self.sparsity, 0, 1)
        require_number("local", self.local, 0, 1)
        require_count("block", self.block, 1)

    @property
    def bandwidth(self) -> float:
        """Width of the band to one side, as a share of the tokens."""
        return round(1 - math.sqrt(self.sparsity), 2)

    def start(self, run: Run) -> RainFusionMethod:
        """Return the method for a new video."""
        return RainFusionMethod(self, run)


@dataclass(frozen=True, eq=False)
class _Bands:
    """The two kinds of heads on a grid: orders `[2, N]` and masks `[2, C, C]`, local first."""

    orders: Tensor
    blocks: TokenBlocks
    keep: Tensor

    @property
    def nbytes(self) -> int:
        return self.orders.nbytes + self.keep.nbytes + self.blocks.nbytes


class RainFusionMethod(SparseMethod[RainFusionConfig]):
    """Static bands, and a class for every head at every call."""

    def __init__(self, config: RainFusionConfig, run: Run) -> None:
        """Start with no bands drawn."""
        super().__init__(config, run)
        self._bands = PerGrid(self._draw)

    def _draw(self, grid: Grid, device: torch.device) -> _Bands:
        frames, frame = grid[0] - 1, grid[1] * grid[2]
        rest = (frames, *grid[1:])
        orders = [
            first_frame_last(axes_order(rest, axes, device), grid, device)
            for axes in ((1, 2, 0), (0, 1, 2))
        ]
        cut = cut_evenly(frames * frame, self.config.block, device).sizes
        width, block = self.config.bandwidth, self.config.block
        keep = torch.ones(2, len(cut) + 1, len(cut) + 1, dtype=torch.bool, device=device)
        blocks_in_order = torch.arange(len(cut), device=device)
        apart = (blocks_in_order[:, None] - blocks_in_order).abs()
        local = math.floor(width * frame / block) * frames
        across = math.floor(width * frames * frame / block)
        for kind, blocks in enumerate((local, across)):
            keep[kind, :-1, :-1] = apart < max(1, blocks)
        return _Bands(torch.stack(orders), TokenBlocks(None, (*cut, frame), device), keep)

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:  # noqa: ARG002
        """Return the bands of query, key `[B, H, N, D]`."""
        layout = call.need_layout("rainfusion")
        bands = self._bands.at(layout, query.device)
        frame = layout.height * layout.width
        with call.watch("selection"):
            kind = torch.zeros(query.shape[:2], dtype=torch.int64, device=query.device)
            if layout.frames > 1:
                kind = 1 - self._is_local(query, key, frame, call).long()
            order, keep = bands.orders[kind], bands.keep[kind]
        call.count("selection", 2 * (frame / layout.video) ** 2)
        sizes = bands.blocks.sizes_tensor.expand(*query.shape[:2], -1)
        return BlockPlan(order, order, sizes, sizes, keep, check=False)

    def _is_local(self, query: Tensor, key: Tensor, frame: int, call: Call) -> Tensor:
        """Say which heads are local, bool `[B, H]`."""
        width = int(self.config.bandwidth * frame)
        scale = default_scale(query, call.scale)
        stride = query.shape[2] // frame - 1
        inside, across = (
            band_recall(query[:, :, part], key[:, :, part], width, scale)
            for part in (slice(frame, 2 * frame), slice(frame, None, stride))
        )
        return (inside > self.config.local) | (inside > across)

    @property
    def state_bytes(self) -> int:
        """Bytes of the bands, which every layer shares."""
        return self._bands.nbytes


def band_recall(query: Tensor, key: Tensor, width: int, scale: float) -> Tensor:
    """Return how much attention of query, key `[B, H, n, D]` falls on keys at most `width` tokens
    away, the mean over rows: `[B, H]`. Rows go in chunks."""
    batch, heads, tokens, _ = query.shape
    dtype = accumulation_dtype(query)
    keys, tokens_in_order = key.to(dtype).mT, torch.arange(tokens, device=query.device)
    total = torch.zeros(batch, heads, dtype=dtype, device=query.device)
    for rows in tokens_in_order.split(max(1, _CHUNK // (batch * heads * tokens))):
        weights = (query[:, :, rows].to(dtype) @ keys * scale).softmax(dim=-1)
        near = (rows[:, None] - tokens_in_order).abs() <= width
        total += (weights * near).sum(dim=(2, 3))
    return total / tokens
