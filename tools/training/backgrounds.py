"""The places of the embedded model's world: six textures, three of which move, at any size."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor

ASPECT = 16 / 9
# Periods in heights. All patterns are regular and at least three codes wide on the smallest grid
# that is trained on (12 rows): what a code cannot hold, a transformer on codes cannot learn.
CHECKERS = 0.5  # two squares
PLANK = 0.25
COURSE, BRICK = 0.25, 0.5

Phase = tuple[float, float, float]


def _colour(red: float, green: float, blue: float) -> Tensor:
    return torch.tensor((red, green, blue)).view(1, 3, 1, 1)


def _soft_step(value: Tensor, width: float) -> Tensor:
    return torch.sigmoid(value / width)


def _checkered_floor(x: Tensor, y: Tensor, _time: Tensor, phase: Phase, pixel: float) -> Tensor:
    wave_x = torch.sin(2 * math.pi * (x / CHECKERS + phase[0]))
    wave_y = torch.sin(2 * math.pi * (y / CHECKERS + phase[1]))
    sharp = 2 * math.pi / CHECKERS * pixel
    square = torch.tanh(wave_x / sharp) * torch.tanh(wave_y / sharp)
    level = 0.46 + 0.16 * square
    return _colour(1.02, 1.0, 0.96) * level.unsqueeze(1)


def _wooden_floor(x: Tensor, y: Tensor, _time: Tensor, phase: Phase, pixel: float) -> Tensor:
    plank = y / PLANK + phase[0]
    row = plank.floor()
    seam = _soft_step((plank - row - 0.5).abs() - 0.46, pixel * 4)
    tone = 0.05 * torch.sin(row * 2.4 + phase[1] * 6)
    grain = 0.04 * torch.sin(
        2 * math.pi * (y * 12 + 0.5 * torch.sin(x * 5 + row * 1.7 + 6 * phase[2]))
    )
    level = 1.0 + tone + grain - 0.45 * seam
    return _colour(0.56, 0.42, 0.29) * level.unsqueeze(1)


def _brick_wall(x: Tensor, y: Tensor, _time: Tensor, phase: Phase, pixel: float) -> Tensor:
    course = y / COURSE + phase[0]
    row = course.floor()
    brick = x / BRICK + phase[1] + 0.5 * (row % 2)
    gap_y = (course - row - 0.5).abs() - 0.44
    gap_x = (brick - brick.floor() - 0.5).abs() - 0.47
    mortar = torch.maximum(
        _soft_step(gap_y, pixel * 5).expand_as(gap_x), _soft_step(gap_x, pixel * 2.5)
    )
    return torch.lerp(_colour(0.47, 0.29, 0.25), _colour(0.58, 0.56, 0.53), mortar.unsqueeze(1))


def _grassy_field(x: Tensor, y: Tensor, time: Tensor, phase: Phase, _pixel: float) -> Tensor:
    sway = 0.012 * torch.sin(2 * math.pi * (time + phase[2]))
    lean = x + sway * (1 - y) * 4 + 0.02 * torch.sin(y * 16 + 6 * phase[0])
    blades = torch.sin(2 * math.pi * (lean * 4 + phase[0])) * torch.sin(
        2 * math.pi * (y * 2 + 0.5 * torch.sin(lean * 6 + 6 * phase[1]))
    )
    level = 0.86 + 0.17 * blades + 0.22 * y
    return _colour(0.34, 0.44, 0.27) * level.unsqueeze(1)


def _starry_sky(x: Tensor, y: Tensor, time: Tensor, phase: Phase, pixel: float) -> Tensor:
    sky = _colour(0.07, 0.07, 0.15) * (1.35 - 0.6 * y).unsqueeze(1)
    stars = random.Random(phase[0])
    glow = torch.zeros(1, 1, 1)
    for _ in range(16):
        star_x, star_y = stars.uniform(0, ASPECT), stars.uniform(0, 1)
        size = max(stars.uniform(0.014, 0.022), 0.8 * pixel)
        twinkle = 0.42 + 0.12 * torch.sin(2 * math.pi * (time + stars.random()))
        glow = glow + twinkle * torch.exp(-((x - star_x) ** 2 + (y - star_y) ** 2) / size**2)
    return sky + _colour(1.0, 0.98, 0.9) * glow.unsqueeze(1)


def _rippling_water(x: Tensor, y: Tensor, time: Tensor, phase: Phase, _pixel: float) -> Tensor:
    turn = 2 * math.pi * time
    bend = 0.5 * torch.sin(4.2 * x + turn + 6 * phase[0]) + 0.4 * torch.sin(
        2.6 * x - turn + 6 * phase[1]
    )
    ripple = torch.sin(16 * y + 2.2 * bend - 1.5 * turn + 6 * phase[2])
    level = 0.92 + 0.13 * ripple + 0.05 * torch.sin(7 * x + 9 * y + turn)
    return _colour(0.26, 0.40, 0.48) * level.unsqueeze(1)


Painter = Callable[[Tensor, Tensor, Tensor, Phase, float], Tensor]
PAINTERS: dict[str, Painter] = {
    "a checkered floor": _checkered_floor,
    "a wooden floor": _wooden_floor,
    "a brick wall": _brick_wall,
    "a grassy field": _grassy_field,
    "a starry sky": _starry_sky,
    "rippling water": _rippling_water,
}
"""By name: (x, y, time, phases, size of a pixel) to `[frames or 1, 3, rows, columns]`."""
