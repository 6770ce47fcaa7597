"""BSA's choice of tiles (Bidirectional Sparse Attention, arXiv 2509.01085; FastVideo 2f3d407),
without its training.

Tokens are cut into tiles of 4 x 4 x 4, ragged at the edges. Of a tile's queries those with the
least cosine to its middle token stay; their mean looks at the mean keys of all tiles, and tiles
are kept, the heaviest first, while the softmax mass before them is below `mass`, and at least
`least` of them. In theirs a dropped query copies the output of the nearest one that stays: a plan
cannot say that, so here all queries are computed, and the dropped ones only have no say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from svoo.core.plan import BlockPlan
from svoo.core.selection import keep_mass
from svoo.core.tiles import Grid, PerGrid, TokenBlocks, tile_grid
from svoo.core.validate import accumulation_dtype, default_scale
from svoo.methods.base import Call, MethodConfig, Run, require_count, require_number, require_sizes
from svoo.methods.warm_up import SparseMethod


@dataclass(frozen=True, kw_only=True)
class BSAConfig(MethodConfig):
    """`mass` is the softmax mass between tile means to cover and `least` the fewest key tiles to
    keep; `queries` is the share of a tile's queries that decide, rounded up."""

    name: ClassVar[str] = "bsa"

    mass: float = 0.9
    least: int = 4
    queries: float = 0.5
    tile: Grid = (4, 4, 4)

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        require_number("mass", self.mass, 0, 1)
        require_count("least", self.least, 1)
        require_number("queries", self.queries, 0, 1)
        require_sizes("tile", self.tile, 3)

    def start(self, run: Run) -> BSAMethod:
        """Return the method for a new video."""
        return BSAMethod(self, run)


class BSAMethod(SparseMethod[BSAConfig]):
    """Tiles that cover a mass, fresh at every call."""

    def __init__(self, config: BSAConfig, run: Run) -> None:
        """Start with no tiles cut."""
        super().__init__(config, run)
        self._tiles = PerGrid(lambda grid, device: tile_grid(grid, config.tile, device))

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:  # noqa: ARG002
        """Return the tiles of query, key `[B, H, N, D]` and which see which."""
        config = self.config
        tiles = self._tiles.at(call.need_layout("bsa"), query.device)
        with call.watch("selection"):
            queries = mean_of_unlike(query, tiles, config.queries)
            scores = queries @ tiles.means(key).mT * default_scale(query, call.scale)
            keep = keep_mass(scores.softmax(dim=-1), config.mass, config.least)
        call.count("selection", (tiles.count / tiles.tokens) ** 2)
        return tiles.plan(keep)

    @property
    def state_bytes(self) -> int:
        """Bytes of the tiles, which every layer shares."""
        return self._tiles.nbytes


def mean_of_unlike(tokens: Tensor, tiles: TokenBlocks, share: float) -> Tensor:
    """Return the mean of the share of each tile's tokens `[B, H, N, D]` that are least like its
    middle one (by cosine; of equal ones the first): `[B, H, C, D]`. The middle of n tokens is the
    one with n // 2 before it."""
    if share == 1:
        return tiles.means(tokens)
    inside = tiles.gather(tokens).to(accumulation_dtype(tokens))  # [B, H, C, largest, D]
    directions = normalize(inside, dim=-1)
    middle = torch.arange(tiles.count, device=tokens.device), tiles.sizes_tensor // 2
    likeness = (directions @ directions[:, :, *middle].unsqueeze(-1)).squeeze(-1)
    likeness = likeness.masked_fill(~tiles.is_member, torch.inf)
    ranks = likeness.argsort(dim=-1, stable=True).argsort(dim=-1)
    count = (tiles.sizes_tensor * share - 1e-6).ceil().clamp(min=1)
    weights = (ranks < count.unsqueeze(-1)) / count.unsqueeze(-1).to(inside.dtype)
    return (weights.unsqueeze(-2) @ inside).squeeze(-2)
