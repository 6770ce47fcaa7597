"""Sliding Tile Attention (arXiv 2502.04507; hao-ai-lab/FastVideo, branch sta_do_not_delete
e4de776): each tile of 6 x 8 x 8 tokens sees the tiles in a window around it.

Along each axis the window's centre is clamped so that it stays inside the grid; an even size
counts as the next odd one (`svoo.core.tiles.window_mask`). The authors choose the window of every
step, layer and head offline, by the error of the output: `svoo.methods.sta_search` does that, and
`windows` takes what it stored. Where the windows of all heads cover the grid the call is dense, as
in the first 12 (Wan) or 15 (HunyuanVideo) of 50 steps. Theirs needs grids that tiles divide;
here tiles at the edges have what is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from svoo.catalogue import find_model
from svoo.core.plan import BlockPlan
from svoo.core.tiles import Grid, PerGrid, tile_counts, tile_grid, window_mask
from svoo.errors import ConfigError
from svoo.methods.base import Call, Dense, MethodConfig, Run, require, require_sizes
from svoo.methods.warm_up import SparseMethod
from svoo.profiles.windows import WindowTable

DEFAULT_WINDOW = (3, 3, 3)


@dataclass(frozen=True, kw_only=True)
class STAConfig(MethodConfig):
    """`windows`: one for all (in tiles: frames, height, width; None is 3 x 3 x 3), a `WindowTable`
    or the path of one that was saved, or a tensor `[steps, layers, heads, 3]`."""

    name: ClassVar[str] = "sta"

    tile: Grid = (6, 8, 8)
    windows: Grid | WindowTable | Tensor | str | Path | None = None
    dense_steps: int | float = 0.24  # 12 of 50

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        require_sizes("tile", self.tile, 3)
        windows = self.windows
        if isinstance(windows, Tensor):
            object.__setattr__(self, "windows", WindowTable(windows))
        elif isinstance(windows, tuple):
            require_sizes("windows", windows, 3)
        else:
            fits = windows is None or isinstance(windows, WindowTable | str | Path)
            expected = "three whole numbers, a WindowTable, the path of one, or None"
            require("windows", windows, expected, fits=fits)

    @classmethod
    def for_model(cls, model: str) -> Self:
        """Return the authors' warm-up for a model."""
        return cls(dense_steps=0.3 if find_model(model).name.startswith("hunyuan") else 0.24)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain data, a table of windows by its sizes."""
        settings = super().as_dict()
        if isinstance(self.windows, WindowTable):
            steps, layers, heads, _ = self.windows.windows.shape
            settings["windows"] = f"a table of {steps} steps, {layers} layers, {heads} heads"
        elif isinstance(self.windows, Path):
            settings["windows"] = str(self.windows)
        return settings

    def start(self, run: Run) -> STAMethod:
        """Return the method for a new video."""
        return STAMethod(self, run)


class STAMethod(SparseMethod[STAConfig]):
    """Windows of the run; the mask of each kind is made once."""

    def __init__(self, config: STAConfig, run: Run) -> None:
        """Read the windows."""
        super().__init__(config, run)
        windows = config.windows
        self._table: WindowTable | None = None
        self._window = windows if isinstance(windows, tuple) else DEFAULT_WINDOW
        if isinstance(windows, WindowTable):
            self._table = windows
        elif isinstance(windows, str | Path):
            self._table = WindowTable.load(windows)
        self._tiles = PerGrid(lambda grid, device: tile_grid(grid, config.tile, device))
        self._masks: dict[tuple[Any, ...], Tensor] = {}

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan | Dense:  # noqa: ARG002
        """Return the tiles of query, key `[B, H, N, D]` and which see which."""
        layout = call.need_layout("sta")
        windows = self._windows(call, query.shape[1])
        everyone = windows if self._table is None else self._rows(call)
        counts = tile_counts((layout.frames, layout.height, layout.width), self.config.tile)
        if self._table is not None and all(_covers(window, counts) for window in everyone):
            return Dense("the stored windows cover the grid at this step", planned=True)
        tiles = self._tiles.at(layout, query.device)
        with call.watch("selection"):
            masks = [self._mask(counts, window, query.device) for window in windows]
            keep = torch.stack(masks) if len(set(windows)) > 1 else masks[0].unsqueeze(0)
        return tiles.plan(keep.expand(*query.shape[:2], -1, -1))

    def _windows(self, call: Call, heads: int) -> list[Grid]:
        """Return the window of every head of a call."""
        if self._table is None:
            return [self._window] * heads
        rows = self._rows(call)
        if len(rows) < call.head_offset + heads:
            raise ConfigError(
                f"windows must be for all {call.head_offset + heads} heads, got {len(rows)}: "
                "search them with this model"
            )
        return rows[call.head_offset : call.head_offset + heads]

    def _rows(self, call: Call) -> list[Grid]:
        """Return the stored windows of all heads of the model."""
        assert self._table is not None
        rows = self._table.at(call.step, self.run.steps, call.layer).tolist()
        return [(t, h, w) for t, h, w in rows]

    def _mask(self, counts: tuple[int, ...], window: Grid, device: torch.device) -> Tensor:
        made_for = counts, window, device
        if made_for not in self._masks:
            self._masks[made_for] = window_mask(counts, window, device)
        return self._masks[made_for]

    @property
    def state_bytes(self) -> int:
        """Bytes of the tiles and of one mask per kind of window, which every layer shares."""
        return self._tiles.nbytes + sum(mask.nbytes for mask in self._masks.values())


def _covers(window: Grid, counts: tuple[int, ...]) -> bool:
    """Say whether a window holds all tiles, wherever it stands."""
    return all(2 * (size // 2) + 1 >= count for size, count in zip(window, counts, strict=True))
