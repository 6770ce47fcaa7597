"""How much a study measures: sizes, steps, and how finely settings are swept."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from svoo.errors import ConfigError
from svoo.plugin.request import Request


@dataclass(frozen=True)
class VideoSize:
    """Frames, height and width of a video."""

    frames: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.width} x {self.height}, {self.frames} frames"


Size = VideoSize | None  # None: the model decides


@dataclass(frozen=True)
class Scale:
    """The sizes of the main table and of everything else, the steps of a run, every which step is
    measured, how many points a sweep has, how many prompts the sweeps and the examples take."""

    large: Size
    small: Size
    steps: int
    every: int = 3
    points: int = 4
    prompts: int = 12
    examples: int = 2

    def cost(self, size: Size) -> float:
        """Return about how much longer a run of this size takes than one of the smallest."""
        if size is None:
            return 1.0
        pixels = size.frames * size.height * size.width
        return max(1.0, math.pow(pixels / 142_080, 1.6))


_FULL = {"mini": (VideoSize(49, 144, 256), VideoSize(49, 80, 144), 20)}
# 600 tokens: 585 would be 72 x 40 pixels, and sides must be multiples of 16.
_QUICK = VideoSize(37, 48, 80)


def choose_scale(request: Request, *, quick: bool) -> Scale:
    """Return the scale for a request: the embedded model has two sizes, others their own one; a
    size or number of steps that is asked for counts for all."""
    if quick and request.model != "mini":
        raise ConfigError("--quick is for the embedded model; give --frames, --height, --width")
    large, small, steps = _FULL.get(request.model, (None, None, request.steps or 50))
    scale = Scale(large, small, steps)
    if quick:
        scale = Scale(_QUICK, _QUICK, 8, every=3, points=2, prompts=2, examples=1)
    given = request.frames, request.height, request.width
    if any(given):
        if not all(given):
            raise ConfigError("give --frames, --height and --width together, or none of them")
        asked = VideoSize(*(int(number or 0) for number in given))
        scale = replace(scale, large=asked, small=asked)
    return replace(scale, steps=request.steps or scale.steps)
