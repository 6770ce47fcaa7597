"""RainFusion 2 (Ascend/MindIE-SD 3066189, "rf_v2"; Celeste-jq/Wan2.2 5529105): pooled attention
between blocks of windows, the first frame always.

Tokens are brought into windows of 8 x 8 tokens of a frame ("frames"), or, with the first frame
behind the others, into windows of 2 x 8 x 8 of the others ("cubes"), ragged at the edges, and the
whole is cut into blocks of 128. A query block keeps the key blocks whose softmax weight between
block means is no less than the ceil((1 - sparsity) C)-th best of its row. Blocks that hold a token
of the first frame see all and are seen by all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from svoo.core.plan import BlockPlan
from svoo.core.selection import count_kept, least_of_best
from svoo.core.tiles import Grid, PerGrid, TokenBlocks, cut_evenly, first_frame_last, tile_grid
from svoo.core.validate import default_scale
from svoo.methods.base import (
    Call,
    MethodConfig,
    Run,
    require_choice,
    require_count,
    require_number,
)
from svoo.methods.warm_up import SparseMethod


@dataclass(frozen=True, kw_only=True)
class RainFusion2Config(MethodConfig):
    """`sparsity` is the share of key blocks that a row leaves out, ties and forced ones aside;
    `windows` says which tokens make a block."""

    name: ClassVar[str] = "rainfusion2"

    sparsity: float = 0.8
    windows: Literal["frames", "cubes"] = "frames"
    block: int = 128
    dense_steps: int | float = 0.375  # 15 of 40

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        require_number("sparsity", self.sparsity, 0, 1)
        require_choice("windows", self.windows, ("frames", "cubes"))
        require_count("block", self.block, 1)

    def start(self, run: Run) -> RainFusion2Method:
        """Return the method for a new video."""
        return RainFusion2Method(self, run)


class RainFusion2Method(SparseMethod[RainFusion2Config]):
    """The best blocks of each row, fresh at every call."""

    def __init__(self, config: RainFusion2Config, run: Run) -> None:
        """Start with no blocks cut."""
        super().__init__(config, run)
        self._blocks = PerGrid(self._cut)

    def _cut(self, grid: Grid, device: torch.device) -> TokenBlocks:
        tokens, block = grid[0] * grid[1] * grid[2], self.config.block
        if self.config.windows == "frames":
            return cut_evenly(tokens, block, device, tile_grid(grid, (1, 8, 8), device).order)
        rest = tile_grid((grid[0] - 1, *grid[1:]), (2, 8, 8), device).order
        return cut_evenly(tokens, block, device, first_frame_last(rest, grid, device))

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:  # noqa: ARG002
        """Return the blocks of query, key `[B, H, N, D]` and which see which."""
        layout = call.need_layout("rainfusion2")
        blocks = self._blocks.at(layout, query.device)
        with call.watch("selection"):
            scores = blocks.means(query) @ blocks.means(key).mT * default_scale(query, call.scale)
            weights = scores.softmax(dim=-1)
            count = count_kept(self.config.sparsity, blocks.count)
            keep = weights >= least_of_best(weights, count)
            forced = self._first_frame(blocks, layout.height * layout.width)
            keep[:, :, forced] = True
            keep[..., forced] = True
        call.count("selection", (blocks.count / blocks.tokens) ** 2)
        return blocks.plan(keep)

    def _first_frame(self, blocks: TokenBlocks, frame: int) -> slice:
        """Return the blocks that hold tokens of the first frame."""
        if self.config.windows == "frames":
            return slice(-(-frame // self.config.block))
        return slice((blocks.tokens - frame) // self.config.block, None)

    @property
    def state_bytes(self) -> int:
        """Bytes of the blocks, which every layer shares."""
        return self._blocks.nbytes
