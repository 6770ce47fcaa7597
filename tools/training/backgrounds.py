"""The places of the embedded model's world: six textures, three of which move, at any size."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

ASPECT = 16 / 9
# Periods in heights. Patterns of floors and walls are whole numbers of codes wide on the grids of
# 12 and 18 rows and begin at a whole or half period, so that their edges lie at few positions
# inside a code. With any period and phase the edges did not become straight.
CHECKERS = 2 / 3  # two squares
PLANK = 1 / 3
COURSE, BRICK = 1 / 3, 2 / 3
BLADE = 2 / 9  # four codes of the large grid
STARS = 1 / 3  # apart

Phase = tuple[float, float, float]


def _colour(red: float, green: float, blue: float) -> Tensor:
    return torch.tensor((red, green, blue)).view(1, 3, 1, 1)


def _soft_step(value: Tensor, width: float) -> Tensor:
    return torch.sigmoid(value / width)


def _half(phase: float) -> float:
    """Return 0 or a half."""
    return 0.5 * (phase >= 0.5)


def _checkered_floor(x: Tensor, y: Tensor, _time: Tensor, phase: Phase, pixel: float) -> Tensor:
    wave_x = torch.sin(2 * math.pi * (x / CHECKERS + _half(phase[0])))
    wave_y = torch.sin(2 * math.pi * (y / CHECKERS + _half(phase[1])))
    sharp = 2 * math.pi / CHECKERS * pixel
    square = torch.tanh(wave_x / sharp) * torch.tanh(wave_y / sharp)
    level = 0.46 + 0.16 * square
    return _colour(1.02, 1.0, 0.96) * level.unsqueeze(1)


def _wooden_floor(x: Tensor, y: Tensor, _time: Tensor, phase: Phase, pixel: float) -> Tensor:
    plank = y / PLANK + _half(phase[0])
    row = plank.floor()
    seam = _soft_step((plank - row - 0.5).abs() - 0.455, pixel * 3)
    tone = 0.06 * torch.sin(row * 2.4 + 2 * math.pi * _half(phase[1]))
    grain = 0.03 * torch.sin(2 * math.pi * (y * 6 + 0.3 * torch.sin(x * 5 + row * 1.7)))
    level = 1.0 + tone + grain - 0.45 * seam
    return _colour(0.56, 0.42, 0.29) * level.unsqueeze(1)


def _brick_wall(x: Tensor, y: Tensor, _time: Tensor, phase: Phase, pixel: float) -> Tensor:
    course = y / COURSE + _half(phase[0])
    row = course.floor()
    brick = x / BRICK + _half(phase[1]) + 0.5 * (row % 2)
    gap_y = (course - row - 0.5).abs() - 0.44
    gap_x = (brick - brick.floor() - 0.5).abs() - 0.47
    mortar = torch.maximum(
        _soft_step(gap_y, pixel * 3).expand_as(gap_x), _soft_step(gap_x, pixel * 1.5)
    )
    return torch.lerp(_colour(0.47, 0.29, 0.25), _colour(0.58, 0.56, 0.53), mortar.unsqueeze(1))


def _grassy_field(x: Tensor, y: Tensor, time: Tensor, phase: Phase, _pixel: float) -> Tensor:
    sway = 0.04 * torch.sin(2 * math.pi * (time + phase[2])) * (1 - y)
    bend = 0.15 * torch.sin(2 * math.pi * y / BLADE / 2)
    blades = torch.sin(2 * math.pi * ((x + sway) / BLADE + bend + _half(phase[0])))
    level = 0.86 + 0.17 * blades + 0.22 * y
    return _colour(0.34, 0.44, 0.27) * level.unsqueeze(1)


def _starry_sky(x: Tensor, y: Tensor, time: Tensor, phase: Phase, pixel: float) -> Tensor:
    sky = _colour(0.07, 0.07, 0.15) * (1.35 - 0.6 * y).unsqueeze(1)
    # One star in each cell of a lattice; those of every other row stand between the others'.
    down = y / STARS + _half(phase[0])
    row = down.floor()
    along = x / STARS + _half(phase[1]) + 0.5 * (row % 2)
    column = along.floor()
    away = (along - column - 0.5) ** 2 + (down - row - 0.5) ** 2
    size = max(0.045, 0.8 * pixel) / STARS
    twinkle = 0.34 + 0.05 * torch.sin(2 * math.pi * (time + 0.37 * column + 0.61 * row + phase[2]))
    glow = twinkle * torch.exp(-away / size**2)
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
