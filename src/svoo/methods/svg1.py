"""SVG1 (Sparse VideoGen): a band in the order of space or of time, whichever suits a head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from svoo.catalogue import find_model
from svoo.core.bands import band_in_blocks, band_width, temporal_order
from svoo.core.blocks import block_sizes
from svoo.core.layout import VideoLayout
from svoo.core.plan import BlockPlan
from svoo.core.quality import masked_errors
from svoo.methods.base import (
    Call,
    Method,
    MethodConfig,
    Run,
    require_choice,
    require_count,
    require_share,
)
from svoo.methods.warm_up import SparseMethod, sparse_videogen_warm_up

CLASSIFIED_ROWS = 10_000  # rows are drawn from the first so many


@dataclass(frozen=True, kw_only=True)
class SVG1Config(MethodConfig):
    """Sparse VideoGen (arXiv 2502.01776; svg-project/Sparse-VideoGen 5ce7b01).

    At every call each head is classified: `rows` random rows (with replacement, shared by all
    heads) are attended exactly and under two masks, and the mask with the smaller squared error
    wins, ties spatial. The masks are bands of blocks, |i - j| < 2 frames ("wan"; with the first
    frame's columns) or 1.5 frames ("hunyuan"), in raster order (spatial) or in the order that has
    the frames of a patch side by side (temporal). What runs is a band of its own, in the head's
    order: as wide as `density` asks for, rounded up to whole blocks with the first T columns
    ("wan"), or rounded down ("hunyuan").
    """

    name: ClassVar[str] = "svg1"

    density: float = 0.3
    rows: int = 64
    family: Literal["wan", "hunyuan"] = "wan"
    block: int = 128
    dense_steps: int | float = 0.2
    dense_layers: int = 1

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        require_share("density", self.density)
        require_count("rows", self.rows, 1)
        require_count("block", self.block, 1)
        require_choice("family", self.family, ("wan", "hunyuan"))

    @classmethod
    def for_model(cls, model: str) -> Self:
        """Return the settings of the authors' script for a model."""
        if find_model(model).name.startswith("hunyuan"):
            return cls(density=0.25, family="hunyuan", **sparse_videogen_warm_up(model))
        return cls(**sparse_videogen_warm_up(model))

    def start(self, run: Run) -> Method:
        """Return the method for a new video."""
        return _SVG1Method(self, run)


class Bands(NamedTuple):
    """What a grid's plans have in common: the two orders `[2, N]` (spatial, temporal), the
    position of each token in them, sizes `[blocks]` and keep `[blocks, blocks]`."""

    orders: Tensor
    positions: Tensor
    sizes: Tensor
    keep: Tensor


class _SVG1Method(SparseMethod[SVG1Config]):
    """SVG1 over a run: its bands are made once for each grid."""

    def __init__(self, config: SVG1Config, run: Run) -> None:
        super().__init__(config, run)
        self._bands: dict[tuple[int, int, int, int, torch.device], Bands] = {}

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:
        config = self.config
        layout = call.need_layout(self.config.name)
        grid = (layout.frames, layout.height, layout.width, layout.text, query.device)
        if grid not in self._bands:
            made = make_bands(layout, config)
            self._bands[grid] = Bands(*(part.to(query.device) for part in made))
        bands = self._bands[grid]
        with call.watch("selection"):
            chance = call.chance(config.seed)
            drawn = torch.randint(
                min(CLASSIFIED_ROWS, layout.video),
                (config.rows,),
                generator=chance,
                device=chance.device,
            )
            rows = drawn.to(query.device, non_blocking=True)
            masks = classifying_masks(rows, bands.positions, layout, config)
            errors = masked_errors(query, key, value, rows, masks, call.scale)
            temporal = (errors[1] < errors[0]).unsqueeze(-1)
            order = torch.where(temporal, bands.orders[1], bands.orders[0])
        call.count("selection", config.rows / layout.video)
        lead = query.shape[:2]
        sizes = bands.sizes.expand(*lead, -1)
        keep = bands.keep.expand(*lead, -1, -1)
        return BlockPlan(order, order, sizes, sizes, keep, check=False)

    @property
    def state_bytes(self) -> int:
        return sum(part.nbytes for bands in self._bands.values() for part in bands)


def make_bands(layout: VideoLayout, config: SVG1Config) -> Bands:
    """Return the orders and the band that runs, in whole blocks, for a layout."""
    tokens, block = layout.video, config.block
    width = band_width(layout.tokens, config.density, layout.text) / block
    frame = layout.height * layout.width
    if config.family == "wan":
        keep = band_in_blocks(tokens, block, math.ceil(width) * block, sink=frame)
    else:  # strictly inside
        keep = band_in_blocks(tokens, block, math.floor(width) * block - 1)
    orders = torch.stack((torch.arange(tokens), temporal_order(layout)))
    return Bands(orders, orders.argsort(dim=-1), block_sizes(tokens, block, orders.device), keep)


def classifying_masks(
    rows: Tensor, positions: Tensor, layout: VideoLayout, config: SVG1Config
) -> Tensor:
    """Return the two masks that heads are classified by, for rows `[R]`: bool `[2, R, N]`."""
    frame = layout.height * layout.width
    reach = 2 * frame if config.family == "wan" else 1.5 * frame
    blocks = (positions // config.block).int()  # [2, N]
    apart = (blocks[:, rows].unsqueeze(-1) - blocks.unsqueeze(1)).abs_()
    masks = apart < max(1, int(reach // config.block))
    if config.family == "wan":
        masks |= (positions < frame).unsqueeze(1)
    return masks
