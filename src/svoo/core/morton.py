"""Morton order of a video grid: neighbours in time and space stay near one another."""

from __future__ import annotations

import torch
from torch import Tensor

from svoo.core.layout import VideoLayout


def morton_order(layout: VideoLayout, device: torch.device) -> Tensor:
    """Return which video token stands at each position along the curve, int64 `[N]`.

    The code of a token has the bits of its column, row and frame in turn, the column's lowest
    first; tokens are sorted by it. Made on the CPU, then moved.
    """
    sides = (layout.width, layout.height, layout.frames)
    column, row, frame = (torch.arange(side) for side in sides)
    code = _spread(frame)[:, None, None] << 2 | _spread(row)[None, :, None] << 1 | _spread(column)
    return code.flatten().argsort().to(device, non_blocking=True)


def _spread(numbers: Tensor) -> Tensor:
    """Return whole numbers with two zeros between their bits (21 bits of 63)."""
    found = torch.zeros_like(numbers)
    for bit in range(int(numbers[-1]).bit_length()):
        found |= (numbers >> bit & 1) << 3 * bit
    return found
