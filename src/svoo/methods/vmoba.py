"""VMoBA's choice of chunks (arXiv 2506.23858; KwaiVGI/VMoBA 4da72ff, settings of FastVideo),
without its training.

Layers take turns with three partitions of the video: chunks of frames, of the picture (all
frames), and of both. Every query *token* scores every chunk by its raw product with the chunk's
mean key. It always sees its own chunk, and besides, "topk": the best others, so many in all; or
"threshold": scores are scaled to 0 .. 1 over the query's chunks (scope "query") or over all of the
head's ("head"), and the best others are added until they and the own chunk hold `threshold` of the
sum, at least one.

Query blocks would be single tokens; tokens that keep the same chunks are made one block, which
waits for the device once. With few chunks that groups well (tens of tokens); with hundreds nearly
every token stays alone, and a call costs more than its density says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from svoo.core.equal_rows import group_equal_rows
from svoo.core.gates import keep_threshold, keep_topk
from svoo.core.plan import BlockPlan
from svoo.core.tiles import Grid, PerGrid, TokenBlocks, tile_grid
from svoo.core.validate import accumulation_dtype
from svoo.methods.base import (
    Call,
    MethodConfig,
    Run,
    require_choice,
    require_count,
    require_number,
    require_sizes,
)
from svoo.methods.warm_up import SparseMethod

_SCORES = 1 << 27  # held at a time
_CACHED = 1 << 18  # scores of a part


@dataclass(frozen=True, kw_only=True)
class VMoBAConfig(MethodConfig):
    """`time`, `plane` and `cube` are the chunks of the three kinds of layers, in tokens; `topk`
    counts the chunks kept in each kind. Layers are counted from the first sparse one."""

    name: ClassVar[str] = "vmoba"

    select: Literal["threshold", "topk"] = "threshold"
    threshold: float = 0.25
    scope: Literal["query", "head"] = "query"
    topk: tuple[int, int, int] = (3, 20, 15)
    time: int = 2
    plane: tuple[int, int] = (3, 4)
    cube: Grid = (4, 6, 4)
    dense_steps: int | float = 0.24  # 12 of 50

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        require_choice("select", self.select, ("threshold", "topk"))
        require_number("threshold", self.threshold, 0, 1)
        require_choice("scope", self.scope, ("query", "head"))
        require_sizes("topk", self.topk, 3)
        require_count("time", self.time, 1)
        require_sizes("plane", self.plane, 2)
        require_sizes("cube", self.cube, 3)

    def start(self, run: Run) -> VMoBAMethod:
        """Return the method for a new video."""
        return VMoBAMethod(self, run)


class VMoBAMethod(SparseMethod[VMoBAConfig]):
    """Three partitions of the video, and a choice for every token at every call."""

    def __init__(self, config: VMoBAConfig, run: Run) -> None:
        """Start with nothing cut."""
        super().__init__(config, run)

        def cut_time(grid: Grid, device: torch.device) -> TokenBlocks:
            return tile_grid(grid, (config.time, grid[1], grid[2]), device)

        def cut_plane(grid: Grid, device: torch.device) -> TokenBlocks:
            return tile_grid(grid, (grid[0], *config.plane), device)

        def cut_cubes(grid: Grid, device: torch.device) -> TokenBlocks:
            return tile_grid(grid, config.cube, device)

        self._chunks = [PerGrid(cut) for cut in (cut_time, cut_plane, cut_cubes)]

    def heads_per_plan(self, query: Tensor, key: Tensor) -> int:
        """Return how many heads are planned at a time, so that their scores stay small."""
        frames, height, width = self.config.cube
        chunks = 1 + key.shape[2] // (frames * height * width)
        return max(1, _SCORES // (query.shape[0] * query.shape[2] * chunks))

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:  # noqa: ARG002
        """Return the chunks that the tokens of query, key `[B, H, N, D]` see."""
        config = self.config
        kind = (call.layer - config.dense_layers) % 3
        chunks = self._chunks[kind].at(call.need_layout("vmoba"), query.device)
        with call.watch("selection"):
            keep = self._choose(query, chunks.means(key), chunks.labels, kind)
            rows = group_equal_rows(keep)
        call.count("selection", chunks.count / chunks.tokens)
        lead = query.shape[:2]
        assert chunks.order is not None
        return BlockPlan(
            rows.order,
            chunks.order.expand(*lead, -1),
            rows.sizes,
            chunks.sizes_tensor.expand(*lead, -1),
            rows.keep,
            check=False,
        )

    def _choose(self, query: Tensor, means: Tensor, own: Tensor, kind: int) -> Tensor:
        """Return which chunks with mean keys `[B, H, C, D]` the tokens of query `[B, H, N, D]`
        see, bool `[B, H, N, C]`. Tokens that need not know of each other go in parts that fit a
        cache."""
        config, dtype = self.config, accumulation_dtype(query)
        whole_head = config.select == "threshold" and config.scope == "head"
        entries = query.shape[0] * query.shape[1] * means.shape[2]
        rows = query.shape[2] if whole_head else max(1, _CACHED // entries)
        parts = []
        for tokens, chunk in zip(query.split(rows, dim=2), own.split(rows), strict=True):
            gate = tokens.to(dtype) @ means.mT
            if config.select == "topk":
                parts.append(keep_topk(gate, chunk, config.topk[kind]))
            else:
                parts.append(keep_threshold(gate, chunk, config.threshold, whole_head=whole_head))
        return torch.cat(parts, dim=2)

    @property
    def state_bytes(self) -> int:
        """Bytes of the partitions, which every layer shares."""
        return sum(chunks.nbytes for chunks in self._chunks)
