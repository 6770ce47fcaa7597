"""Radial attention: a fixed mask whose windows shrink with the distance between frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from svoo.catalogue import find_model
from svoo.core.blocks import block_sizes, plan_blocks
from svoo.core.plan import BlockPlan
from svoo.methods.base import (
    Call,
    Method,
    MethodConfig,
    Run,
    require_choice,
    require_count,
    require_number,
    require_switch,
)
from svoo.methods.warm_up import SparseMethod

_SPLIT = 128  # windows below this thin out by leaving whole frames out


@dataclass(frozen=True, kw_only=True)
class RadialConfig(MethodConfig):
    """Radial attention (arXiv 2506.19852; mit-han-lab/radial-attention 72788d4).

    The same for every head and step. A frame sees itself and its neighbours whole
    (`neighbour="half"`, theirs until November 2025: half of a frame to each side). At distance d
    the window is L = 2^bits(tokens per frame) / 2^bits(d), and |key - query| <= max(L * decay,
    block) is seen; where L < 128 only every int(128 / L)-th distance is. `sink`: all see frame 0.
    For a pair of frames a block is kept if more than 60 % of its columns that hold anything have
    more than a third of the block's rows set.
    """

    name: ClassVar[str] = "radial"

    decay: float = 0.2
    block: int = 128
    neighbour: Literal["full", "half"] = "full"
    sink: bool = True
    dense_steps: int | float = 0.24
    dense_layers: int = 1

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        super().__post_init__()
        require_number("decay", self.decay, 0, 1e9)
        require_count("block", self.block, 1)
        require_choice("neighbour", self.neighbour, ("full", "half"))
        require_switch("sink", self.sink)

    @classmethod
    def for_model(cls, model: str) -> Self:
        """Return the settings of the authors' scripts: 12 of 50 steps dense (Wan 2.2: 11 of
        40)."""
        known = find_model(model)
        if known.name.startswith("hunyuan"):
            return cls(decay=0.95, sink=False, dense_layers=0)
        layers = known.dense_layers
        if known.name.startswith("wan2.2"):
            return cls(decay=0.8, block=64, dense_steps=0.275, dense_layers=layers)
        return cls(dense_layers=layers)

    def start(self, run: Run) -> Method:
        """Return the method for a new video."""
        return _Radial(self, run)


class _Radial(SparseMethod[RadialConfig]):
    def __init__(self, config: RadialConfig, run: Run) -> None:
        super().__init__(config, run)
        self._masks: dict[tuple[int, int, torch.device], Tensor] = {}

    @property
    def state_bytes(self) -> int:
        return sum(mask.nbytes for mask in self._masks.values())

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan:  # noqa: ARG002
        layout = call.need_layout("radial")
        with call.watch("selection"):
            made_for = layout.frames, layout.height * layout.width, query.device
            if made_for not in self._masks:  # once per run, on the CPU
                made = radial_blocks(*made_for[:2], self.config)
                self._masks[made_for] = made.to(query.device, non_blocking=True)
            keep = self._masks[made_for].expand(*query.shape[:2], -1, -1)
            blocks = self.config.block, self.config.block
            return plan_blocks(keep, (layout.video, layout.video), blocks)


def find_windows(frames: int, size: int, config: RadialConfig) -> list[int]:
    """Return how far key and query may be apart within their frames of `size` tokens, for every
    distance of frames; -1: not seen."""
    windows = [size, size if config.neighbour == "full" else size // 2]
    for distance in range(2, frames):
        length = 2 ** size.bit_length() / 2 ** distance.bit_length()
        every = int(_SPLIT / length) if length < _SPLIT else 1
        seen = distance % every == 0
        windows.append(int(max(length * config.decay, config.block)) if seen else -1)
    return windows[:frames]


def radial_blocks(frames: int, size: int, config: RadialConfig) -> Tensor:
    """Return which blocks are kept of `frames` frames of `size` tokens, bool `[C, C]`.

    Theirs judges only the first blocks of a frame and misses its tail where blocks and frames do
    not fit; here every block that a frame touches is judged. A third of a block's rows is a third
    of a frame where frames are smaller, so that every block keeps something.
    """
    tokens, block = frames * size, config.block
    columns = torch.arange(tokens)
    column_frame, column = columns // size, columns % size
    # A piece is what a column block has of one frame.
    starts = (columns % size == 0) | (columns % block == 0)
    piece = starts.cumsum(dim=0) - 1
    piece_block = columns[starts] // block
    sizes = block_sizes(tokens, block, columns.device)
    windows = torch.tensor(find_windows(frames, size, config))
    keep = torch.zeros(len(sizes), len(sizes), dtype=torch.bool)
    for frame in range(frames):
        window = windows[(frame - column_frame).abs()]
        if config.sink:
            window = torch.where(column_frame == 0, size, window)
        first, last = frame * size // block, ((frame + 1) * size - 1) // block
        blocks = torch.arange(first, last + 1)
        low = (blocks * block - frame * size).clamp(min=0).unsqueeze(1)
        high = ((blocks + 1) * block - frame * size).clamp(max=size).unsqueeze(1)
        rows = torch.minimum(high, column + window + 1) - torch.maximum(low, column - window)
        rows = torch.where(window < 0, 0, rows.clamp(min=0))  # of each column that are set
        strong = 3 * rows > sizes[blocks].clamp(max=size).unsqueeze(1)
        counts = torch.zeros(2, len(blocks), len(piece_block), dtype=torch.int64)
        counts.index_add_(2, piece, torch.stack((strong, rows > 0)).long())
        kept = 10 * counts[0] > 6 * counts[1]
        for number, columns_kept in zip(blocks.tolist(), kept, strict=True):
            keep[number, piece_block[columns_kept]] = True
    return keep
