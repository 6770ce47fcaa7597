"""Bands around the diagonal in blocks, and the order that turns time into the fastest axis."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from svoo.core.layout import VideoLayout


def temporal_order(layout: VideoLayout) -> Tensor:
    """Return the order `[N]` of video tokens in which the frames of one patch lie side by side:
    order[patch * frames + frame] = the token of that frame and patch."""
    return torch.arange(layout.video).view(layout.frames, -1).T.flatten()


def band_width(tokens: int, density: float, text: int = 0) -> float:
    """Return how far a band around the diagonal of tokens x tokens reaches to cover a density, of
    which text (kept both ways) has its share already."""
    covered = min(1.0, max(0.0, density - 2 * text / tokens))
    return tokens * (1 - math.sqrt(1 - covered))


def band_in_blocks(tokens: int, block: int, reach: int, sink: int = 0) -> Tensor:
    """Return which blocks hold a pair with |query - key| <= reach, or a key below `sink`: bool
    `[blocks, blocks]`. The diagonal is always kept."""
    numbers = torch.arange(-(-tokens // block))
    apart = (numbers.unsqueeze(1) - numbers).abs()
    # The nearest tokens of blocks that are so far apart.
    nearest = (apart - 1) * block + 1
    return (apart == 0) | (nearest <= reach) | (numbers * block < sink)
