"""VSA's choice of tiles (Video Sparse Attention, arXiv 2505.13389; FastVideo 2f3d407), without its
training.

Tokens are cut into tiles of 4 x 4 x 4, ragged at the edges. A query tile keeps the key tiles with
the largest product of the mean query and the mean key; of equal ones the first. The authors train
the model with this and with a gated coarse branch beside it; neither is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from svoo.core.plan import BlockPlan
from svoo.core.selection import count_kept, keep_top
from svoo.core.tiles import Grid, PerGrid, tile_grid
from svoo.core.validate import default_scale
from svoo.methods.base import Call, MethodConfig, Run, require_number, require_sizes
from svoo.methods.warm_up import SparseMethod


@dataclass(frozen=True, kw_only=True)
class VSAConfig(MethodConfig):
    """`sparsity` is the share of key tiles that each query tile leaves out; `tile` is its frames,
    height and width in tokens."""

    name: ClassVar[str] = "vsa"

    sparsity: float = 0.9
    tile: Grid = (4, 4, 4)

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        require_number("sparsity", self.sparsity, 0, 1)
        require_sizes("tile", self.tile, 3)

    def start(self, run: Run) -> VSAMethod:
        """Return the method for a new video."""
        return VSAMethod(self, run)


class VSAMethod(SparseMethod[VSAConfig]):
    """The best tiles for each tile, fresh at every call."""

    def __init__(self, config: VSAConfig, run: Run) -> None:
        """Start with no tiles cut."""
        super().__init__(config, run)
        self._tiles = PerGrid(lambda grid, device: tile_grid(grid, config.tile, device))

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:  # noqa: ARG002
        """Return the tiles of query, key `[B, H, N, D]` and which see which."""
        tiles = self._tiles.at(call.need_layout("vsa"), query.device)
        with call.watch("selection"):
            scores = tiles.means(query) @ tiles.means(key).mT * default_scale(query, call.scale)
            keep = keep_top(scores, count_kept(self.config.sparsity, tiles.count))
        call.count("selection", (tiles.count / tiles.tokens) ** 2)
        return tiles.plan(keep)

    @property
    def state_bytes(self) -> int:
        """Bytes of the tiles, which every layer shares."""
        return self._tiles.nbytes
