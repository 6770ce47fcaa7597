"""Tokens of a video cut into blocks that are the same for every head: 3-D tiles with ragged edges,
other orders of the axes, the first frame last."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from svoo.core.layout import VideoLayout
from svoo.core.plan import BlockPlan
from svoo.core.validate import accumulation_dtype

Grid = tuple[int, int, int]
"""Frames, height, width."""


@dataclass(frozen=True, eq=False)
class TokenBlocks:
    """An order of `[N]` tokens (permuted[i] = tokens[order[i]]; None: as they are) and the sizes
    of consecutive blocks of them, none empty, as Python numbers: nothing waits for the device."""

    order: Tensor | None
    sizes: tuple[int, ...]
    device: torch.device

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(self.sizes)

    @property
    def count(self) -> int:
        """Number of blocks."""
        return len(self.sizes)

    @cached_property
    def sizes_tensor(self) -> Tensor:
        """The sizes as int64 `[C]`."""
        return torch.tensor(self.sizes, device=self.device)

    @cached_property
    def starts(self) -> Tensor:
        """Where each block starts in the permuted tokens, int64 `[C]`."""
        return self.sizes_tensor.cumsum(dim=0) - self.sizes_tensor

    @cached_property
    def members(self) -> Tensor:
        """The tokens of each block, int64 `[C, largest]`; behind a smaller block's own its first
        one is repeated (see `is_member`)."""
        inside = torch.where(self.is_member, self._offsets, 0)
        positions = self.starts.unsqueeze(-1) + inside
        return positions if self.order is None else self.order[positions]

    @cached_property
    def is_member(self) -> Tensor:
        """Which entries of `members` are no repetition, bool `[C, largest]`."""
        return self._offsets < self.sizes_tensor.unsqueeze(-1)

    @cached_property
    def labels(self) -> Tensor:
        """The block of every token in the original order, int64 `[N]`."""
        blocks = torch.arange(self.count, device=self.device)
        by_position = blocks.repeat_interleave(self.sizes_tensor, output_size=self.tokens)
        if self.order is None:
            return by_position
        return torch.empty_like(by_position).scatter_(0, self.order, by_position)

    @property
    def _offsets(self) -> Tensor:
        return torch.arange(max(self.sizes), device=self.device)

    def gather(self, tokens: Tensor) -> Tensor:
        """Return the tokens `[B, H, N, D]` of each block, `[B, H, C, largest, D]`, as `members`
        has them."""
        flat = tokens.index_select(2, self.members.flatten())
        return flat.view(*tokens.shape[:2], *self.members.shape, tokens.shape[3])

    def means(self, tokens: Tensor) -> Tensor:
        """Return the mean of each block's tokens `[B, H, N, D]`: `[B, H, C, D]` in at least
        float32."""
        wide = self.gather(tokens).to(accumulation_dtype(tokens))
        if min(self.sizes) == max(self.sizes):
            return wide.mean(dim=3)
        weights = self.is_member / self.sizes_tensor.unsqueeze(-1).to(wide.dtype)
        return torch.einsum("bhcld,cl->bhcd", wide, weights)

    def plan(self, keep: Tensor) -> BlockPlan:
        """Return the plan with these blocks on both sides and keep `[B, H, C, C]`."""
        lead = keep.shape[:2]
        order = None if self.order is None else self.order.expand(*lead, -1)
        sizes = self.sizes_tensor.expand(*lead, -1)
        return BlockPlan(
            order,
            order,
            sizes,
            sizes,
            keep,
            check=False,
            query_tokens=self.tokens,
            key_tokens=self.tokens,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all that is held."""
        held = (entry for entry in vars(self).values() if isinstance(entry, Tensor))
        return sum(tensor.nbytes for tensor in held)


def is_sizes(value: object, axes: int) -> bool:
    """Say whether a value is a tuple of so many whole numbers of at least 1."""
    if not isinstance(value, tuple) or len(value) != axes:
        return False
    return all(isinstance(size, int) and size >= 1 and size is not True for size in value)


def cut_evenly(
    tokens: int, block: int, device: torch.device, order: Tensor | None = None
) -> TokenBlocks:
    """Cut so many tokens, in an order `[N]` or as they are, into blocks of one size; the last may
    be smaller."""
    whole, rest = divmod(tokens, block)
    return TokenBlocks(order, (block,) * whole + ((rest,) if rest else ()), device)


def tile_counts(grid: Sequence[int], tile: Sequence[int]) -> tuple[int, ...]:
    """Return how many tiles lie along each axis, those at the edge included."""
    return tuple(math.ceil(size / step) for size, step in zip(grid, tile, strict=True))


def tile_grid(grid: Grid, tile: Grid, device: torch.device) -> TokenBlocks:
    """Cut a grid into tiles: first tiles in raster order, then tokens of a tile in raster order.
    Tiles at the far edges have what is left."""
    _, down, across = tile_counts(grid, tile)
    tile_of = [
        torch.arange(size, device=device) // step for size, step in zip(grid, tile, strict=True)
    ]
    tiles = (tile_of[0][:, None, None] * down + tile_of[1][:, None]) * across + tile_of[2]
    frames, rows, columns = (
        [min(step, size - start) for start in range(0, size, step)]
        for size, step in zip(grid, tile, strict=True)
    )
    sizes = tuple(t * h * w for t in frames for h in rows for w in columns)
    return TokenBlocks(tiles.flatten().argsort(stable=True), sizes, device)


def axes_order(grid: Grid, axes: Sequence[int], device: torch.device) -> Tensor:
    """Return the order `[N]` that runs through a grid with its axes (0 frames, 1 height, 2 width)
    in another order, the last one fastest."""
    raster = torch.arange(math.prod(grid), device=device).view(grid)
    return raster.permute(*axes).flatten()


def first_frame_last(rest: Tensor | None, grid: Grid, device: torch.device) -> Tensor:
    """Return the order `[N]` of a grid with its first frame behind the others, which are in the
    order `rest` `[N - frame]` of their own grid (None: as they are)."""
    frame = grid[1] * grid[2]
    if rest is None:
        rest = torch.arange((grid[0] - 1) * frame, device=device)
    return torch.cat((rest + frame, torch.arange(frame, device=device)))


def window_mask(counts: Sequence[int], window: Sequence[int], device: torch.device) -> Tensor:
    """Return which tiles see which, bool `[C, C]`, for a window of so many tiles along each axis.

    Per axis with n tiles: half = window // 2 (so an even size counts as the next odd one), centre
    = the query's tile clamped to half .. n - 1 - half, kept if |centre - key's tile| <= half.
    """
    near = []
    for count, size in zip(counts, window, strict=True):
        half, tiles = size // 2, torch.arange(count, device=device)
        centre = tiles.clamp(min=half).clamp(max=count - 1 - half)
        near.append((centre[:, None] - tiles).abs() <= half)
    frames, rows, columns = near
    keep = (
        frames[:, None, None, :, None, None]
        & rows[None, :, None, None, :, None]
        & columns[None, None, :, None, None, :]
    )
    return keep.reshape(math.prod(counts), -1)


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Made = TypeVar("Made", bound=_Sized)


class PerGrid(Generic[Made]):
    """Things made from a grid and a device, once: a method keeps one of these for a video."""

    def __init__(self, make: Callable[[Grid, torch.device], Made]) -> None:
        """Make nothing yet."""
        self._make = make
        self._made: dict[tuple[Grid, torch.device], Made] = {}

    def at(self, layout: VideoLayout, device: torch.device) -> Made:
        """Return what belongs to the grid of a layout on a device."""
        made_for = (layout.frames, layout.height, layout.width), device
        if made_for not in self._made:
            self._made[made_for] = self._make(*made_for)
        return self._made[made_for]

    @property
    def nbytes(self) -> int:
        """Bytes of all that was made."""
        return sum(made.nbytes for made in self._made.values())
