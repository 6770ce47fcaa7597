"""The offline pass of Sliding Tile Attention: the error of every candidate window, by step, layer
and head, while the video itself stays dense.

    search = WindowSearch(tile=(6, 8, 8))
    with svoo.apply(pipe, search.config()):
        for prompt in prompts:
            pipe(prompt)
    search.choose(dense_steps=12).save("windows.safetensors")
    svoo.apply(pipe, STAConfig(windows="windows.safetensors"))

A call costs a dense pass of our own and one sparse pass per candidate, about 1.5 to 3 dense calls
besides the model's own. Both guidance branches count, as two inputs would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from svoo.backends import run_plan
from svoo.core.tiles import Grid, tile_counts, tile_grid, window_mask
from svoo.core.validate import accumulation_dtype
from svoo.errors import ConfigError
from svoo.methods.base import Call, Dense, MethodConfig, Run
from svoo.profiles.windows import WindowTable, search_windows

CANDIDATES = ((3, 1, 10), (1, 5, 7), (3, 3, 3), (1, 6, 5), (1, 3, 10), (3, 6, 1))
"""The authors' candidates for Wan at 18 x 48 x 80 tokens."""


class WindowSearch:
    """Collects the errors of candidate windows over all videos that run with its config."""

    def __init__(self, tile: Grid = (6, 8, 8), candidates: Sequence[Grid] = CANDIDATES) -> None:
        """Collect nothing yet."""
        self.tile = tile
        self.candidates = tuple(candidates)
        self.shape: tuple[int, int, int] | None = None  # steps, layers, heads
        self.counts: tuple[int, ...] = (1, 1, 1)
        self._sums: Tensor | None = None  # [candidates, steps, layers, heads]
        self._seen: Tensor | None = None  # [steps, layers]

    def config(self) -> MethodConfig:
        """Return the method to apply while searching."""
        return _SearchConfig(search=self)

    def begin(self, run: Run) -> None:
        """Take part in another video, which must have as many steps, layers and heads."""
        shape = run.steps, run.layers, run.heads
        if self.shape not in (None, shape):
            raise ConfigError(
                f"a search of windows needs videos of one kind: steps, layers, heads were "
                f"{self.shape}, now {shape}"
            )
        if self.shape is None:
            self._sums = torch.zeros(len(self.candidates), *shape, dtype=torch.float64)
            self._seen = torch.zeros(*shape[:2], dtype=torch.float64)
        self.shape = shape

    def measure(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> None:
        """Add the squared error of each candidate's output of query, key, value `[B, H, N, D]`."""
        assert self._sums is not None and self._seen is not None
        layout = call.need_layout("a search of windows")
        grid = layout.frames, layout.height, layout.width
        self.counts = tile_counts(grid, self.tile)
        tiles = tile_grid(grid, self.tile, query.device)
        step = min(call.step, self._sums.shape[1] - 1)

        def attend(window: Sequence[int]) -> Tensor:
            keep = window_mask(self.counts, window, query.device)
            plan = tiles.plan(keep.expand(*query.shape[:2], -1, -1))
            return run_plan(query, key, value, plan, scale=call.scale)

        full = attend([2 * count for count in self.counts])
        for number, window in enumerate(self.candidates):
            errors = call.heads.gather(squared_errors(attend(window), full)).cpu()
            first = 0 if len(errors) == self._sums.shape[3] else call.head_offset
            self._sums[number, step, call.layer, first : first + len(errors)] += errors
            if first == number == 0:
                self._seen[step, call.layer] += 1

    def choose(self, dense_steps: int) -> WindowTable:
        """Return the best window of every step, layer and head; the first steps get the whole
        grid."""
        if self._sums is None or self._seen is None or not bool((self._seen > 0).all()):
            raise ConfigError(
                "every step and layer must have been seen: run a whole video with config() first"
            )
        losses = (self._sums / self._seen.unsqueeze(-1)).unsqueeze(0)
        frames, height, width = self.counts
        return search_windows(losses, self.candidates, (frames, height, width), dense_steps)


def squared_errors(output: Tensor, full: Tensor) -> Tensor:
    """Return the mean squared difference of each head of `[B, H, N, D]`, `[H]`, in at least
    float32; a head at a time, since all of a large model's would take gigabytes."""
    dtype = accumulation_dtype(full)
    heads = zip(output.unbind(1), full.unbind(1), strict=True)
    return torch.stack([(one.to(dtype) - other).square_().mean() for one, other in heads])


@dataclass(frozen=True, kw_only=True)
class _SearchConfig(MethodConfig):
    """Dense, and measured."""

    name: ClassVar[str] = "sta-search"

    search: WindowSearch = field(default_factory=WindowSearch)

    def start(self, run: Run) -> _SearchMethod:
        """Return the method for a new video."""
        self.search.begin(run)
        return _SearchMethod(self.search)


class _SearchMethod:
    """Shows every call to the search."""

    state_bytes = 0

    def __init__(self, search: WindowSearch) -> None:
        self.search = search

    def plan(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Dense:
        """Measure, and stay dense."""
        with call.watch("measuring"):
            self.search.measure(query, key, value, call)
        return Dense("windows are being searched", planned=True)
