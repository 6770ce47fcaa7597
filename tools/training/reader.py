"""Reads from the pixels of a clip what it shows: colours, shapes, motion and background, by plain
image analysis."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from svoo.mini.vocabulary import BACKGROUNDS, COLOURS, DIRECTIONS, SHAPES
from tools.training.scenes import BOUNCES, EXTENT, Scene, ask_for, grid, outline, render

CORNERS = (3, 4, 5)  # of a triangle, a square and a star
STILL = 0.05  # a path that strays less from its middle than this, in heights, goes nowhere
FEW = 8  # frames: from fewer only a straight way can be read
REACH = 1.8  # of a shape, in radii of a circle of its area; a star's points have 1.7
CELLS = 32  # rows and columns that a shape is compared on
FREQUENCIES = 9  # of a pattern, from 0 up, in cycles a height
# Of two patterns, as a cosine: places as they are drawn and coded have .83 and more, noise .67.
ALIKE = 0.72
NOTHING = "nothing"


@dataclass(frozen=True)
class Reading:
    """What a clip shows; shapes are those of the first, the middle and the last frame."""

    colour: str
    shapes: tuple[str, ...]
    motion: str
    background: str

    @property
    def shape(self) -> str:
        """The shape, if it stays the same."""
        return self.shapes[0] if len(set(self.shapes)) == 1 else "changing"


def read_clip(clip: Tensor, times: Tensor | None = None) -> Reading:
    """Read a clip `[frames, 3, rows, columns]` in [0, 1] with one thing; `times` of its frames run
    from 0 to 1 unless given."""
    mask = thing_mask(clip)
    return Reading(
        _read_colour(clip, mask),
        _read_shapes(mask),
        _read_motion(mask, torch.linspace(0, 1, len(clip)) if times is None else times),
        _read_background(clip, mask),
    )


def read_halves(clip: Tensor, times: Tensor | None = None) -> tuple[Reading, Reading]:
    """Read a clip with a thing on the left and one on the right."""
    left, right = clip.chunk(2, dim=-1)
    return read_clip(left, times), read_clip(right, times)


def thing_mask(clip: Tensor) -> Tensor:
    """Return where the thing is in a clip `[frames, 3, rows, columns]` in [0, 1]: saturated, or
    brightly white."""
    largest, smallest = clip.amax(dim=1), clip.amin(dim=1)
    apart = largest - smallest
    saturated = (apart > 0.42) | ((apart > 0.28) & (apart > 0.65 * largest))
    return saturated | (smallest > 0.72)


def _read_colour(clip: Tensor, mask: Tensor) -> str:
    pixels = clip.permute(0, 2, 3, 1)[mask]
    if not len(pixels):
        return NOTHING
    names, wanted = list(COLOURS), torch.tensor(list(COLOURS.values()))
    # Shading scales a colour: compare directions, and white by its lack of saturation.
    unit = functional.normalize(pixels - 0.6 * pixels.amin(dim=1, keepdim=True), dim=1)
    white = pixels.amax(dim=1) - pixels.amin(dim=1) < 0.25
    nearest = (unit @ functional.normalize(wanted[:-1], dim=1).T).argmax(dim=1)
    nearest[white] = names.index("white")
    return names[int(nearest.mode().values)]


def _read_shapes(mask: Tensor) -> tuple[str, ...]:
    picked = sorted({0, len(mask) // 2, len(mask) - 1})
    return tuple(read_shape(mask[frame]) for frame in picked)


def read_shape(mask: Tensor) -> str:
    """Name the drawn shape, at any turn, that overlaps most with a mask `[rows, columns]` moved to
    its middle and scaled to its area."""
    if mask.sum() < 20:
        return NOTHING
    seen, drawn = _normalise(mask.float()), _templates()
    return max(drawn, key=lambda name: float(_overlap(seen, drawn[name]).max()))


def _normalise(mask: Tensor) -> Tensor:
    """Return a mask as `[CELLS, CELLS]`, its middle in the middle, its area always the same."""
    rows, columns = mask.shape
    area = mask.sum()
    middle_y = (mask.sum(dim=1) @ (torch.arange(rows) + 0.5)) / area
    middle_x = (mask.sum(dim=0) @ (torch.arange(columns) + 0.5)) / area
    reach = REACH * (area / math.pi).sqrt()
    steps = torch.linspace(-1, 1, CELLS)
    y = 2 * (middle_y + reach * steps) / rows - 1
    x = 2 * (middle_x + reach * steps) / columns - 1
    points = torch.stack(torch.broadcast_tensors(x.view(1, -1), y.view(-1, 1)), dim=-1)
    return functional.grid_sample(mask[None, None], points[None], align_corners=False)[0, 0]


def _overlap(one: Tensor, many: Tensor) -> Tensor:
    both = torch.minimum(one, many).sum(dim=(1, 2))
    return both / torch.maximum(one, many).sum(dim=(1, 2))


@cache
def _templates() -> dict[str, Tensor]:
    """Return each shape at turns of six degrees, `[turns, CELLS, CELLS]`."""
    turns = {"circle": 1, "ring": 1, "square": 15, "triangle": 20, "star": 12}
    x, y = (2 * EXTENT * (axis - axis.mean()) for axis in grid(96, 96))
    found = {}
    for shape in SHAPES:
        angles = [math.radians(6 * turn) for turn in range(turns[shape])]
        masks = [
            outline(
                shape,
                x * math.cos(angle) + y * math.sin(angle),
                y * math.cos(angle) - x * math.sin(angle),
            )
            < 0
            for angle in angles
        ]
        found[shape] = torch.stack([_normalise(mask[0].float()) for mask in masks])
    return found


def _read_motion(mask: Tensor, times: Tensor) -> str:
    """Name the motion whose curve comes nearest to the thing's path; one that goes nowhere grows,
    turns, or is still."""
    count = mask.sum(dim=(1, 2))
    seen = count > 0.3 * count.median().clamp(min=1)
    if seen.sum() < min(FEW, len(mask)) or seen.sum() < 2:
        return NOTHING
    few = len(mask) < FEW
    times = times[seen]
    path = torch.stack([_centre(frame) for frame in mask[seen]])
    around = path - path.mean(dim=0)
    if around.square().sum(dim=1).mean().sqrt() < STILL:
        return "still" if few else _read_standing(mask[seen], count[seen])
    angle = 2 * math.pi * times
    ones = torch.ones_like(times)
    straight = torch.stack((ones, times), dim=1)
    if not few:
        bounce = torch.sin(math.pi * BOUNCES * times).abs()
        curves = {  # as in `tools.training.scenes.pose`
            "straight": straight,
            "orbit": torch.stack((ones, angle.cos(), angle.sin()), dim=1),
            "bounce": torch.stack((ones, bounce), dim=1),
        }
        misses = {
            name: float((curve @ torch.linalg.lstsq(curve, path).solution - path).square().sum())
            for name, curve in curves.items()
        }
        best = min(misses, key=lambda name: misses[name])
        if best != "straight":
            return best
    speed = torch.linalg.lstsq(straight, path).solution[1]
    angles = {name: math.atan2(dy, dx) for name, (dx, dy) in DIRECTIONS.items()}
    heading = math.atan2(float(speed[1]), float(speed[0]))
    return min(angles, key=lambda name: abs(math.remainder(angles[name] - heading, 2 * math.pi)))


def _centre(frame: Tensor) -> Tensor:
    """Return the middle (x, y) of a mask `[rows, columns]`, in heights."""
    rows, columns = frame.nonzero().float().mean(dim=0) + 0.5
    return torch.stack((columns, rows)) / frame.shape[0]


def _read_standing(mask: Tensor, count: Tensor) -> str:
    """Tell growing from turning from neither, for a thing that stays where it is."""
    fifth = max(1, len(count) // 5)
    if count[-fifth:].float().mean() > 2 * count[:fifth].float().mean():
        return "grow"
    # k corners make a k-fold wave around the middle, whose phase turns k times as fast.
    waves = torch.stack([_corner_waves(frame) for frame in mask])
    strongest = int(waves.abs().mean(dim=0).argmax())
    steps = (waves[1:, strongest] * waves[:-1, strongest].conj()).angle()
    turned = float(steps.sum()) / (2 * math.pi)  # by so many corners
    return "spin" if abs(turned) > 0.6 else "still"


def _corner_waves(frame: Tensor) -> Tensor:
    """Return how strongly, and at which angle, a mask `[rows, columns]` has 3, 4 and 5 corners."""
    points = frame.nonzero().float()
    # Without what lies farther away than any corner: stars of the sky, say.
    away = (points - points.median(dim=0).values).norm(dim=1)
    points = points[away < REACH * math.sqrt(len(points) / math.pi)]
    rows, columns = (points - points.mean(dim=0)).T
    distance, angle = torch.hypot(rows, columns), torch.atan2(rows, columns)
    far = (distance / distance.mean().clamp(min=1e-6)) ** 3
    return torch.stack([torch.polar(far, k * angle).sum() for k in CORNERS])


def _read_background(clip: Tensor, mask: Tensor) -> str:
    """Name the background whose colour and whose pattern are the nearest ones, both."""
    found = background_features(clip, mask)
    drawn = _drawn_backgrounds(clip.shape[2], clip.shape[3])
    by_colour = min(drawn, key=lambda name: float((found[0] - drawn[name][0]).norm()))
    likeness = {name: float(found[1] @ pattern) for name, (_, pattern) in drawn.items()}
    by_pattern = max(likeness, key=lambda name: likeness[name])
    if likeness[by_pattern] < ALIKE:
        by_pattern = NOTHING
    return by_colour if by_colour == by_pattern else f"{by_pattern}, coloured as {by_colour}"


def background_features(clip: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean colour of what is neither the thing nor its shadow, and the strengths of
    its pattern's frequencies (rows, columns; of length 1), wherever the pattern begins."""
    picked = sorted({0, len(clip) // 2, len(clip) - 1})
    clip, mask = clip[picked], mask[picked]
    rows, columns = clip.shape[2:]
    wide = 2 * (rows // 12) + 1
    free = functional.max_pool2d(mask.float().unsqueeze(1), wide, 1, wide // 2).squeeze(1) == 0
    free[:, 0, 0] = True
    colour = clip.permute(0, 2, 3, 1)[free].mean(dim=0)
    grey = clip.mean(dim=1)
    count = free.sum(dim=(1, 2), keepdim=True)
    grey = (grey - (grey * free).sum(dim=(1, 2), keepdim=True) / count) * free
    x, y = grid(rows, columns)
    cycles_x = torch.arange(FREQUENCIES)
    cycles_y = torch.arange(1 - FREQUENCIES, FREQUENCIES)
    wave_x = torch.polar(torch.ones(1), 2 * math.pi * x.flatten()[:, None] * cycles_x)
    wave_y = torch.polar(torch.ones(1), 2 * math.pi * y.flatten()[:, None] * cycles_y)
    strength = (wave_y.T @ grey.to(wave_x.dtype) @ wave_x).abs().square().mean(dim=0)
    return colour, functional.normalize(strength.sqrt().flatten(), dim=0)


@cache
def _drawn_backgrounds(rows: int, columns: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the mean features of each background at a size, from drawn pictures."""
    found = {}
    for background in BACKGROUNDS:
        colours, patterns = [], []
        for seed in range(12):
            scene = ask_for("red", "circle", "grow", background, random.Random(f"p{seed}"))
            clip = (render(scene, 1, rows, columns, first_frame=4 * seed) + 1) / 2
            colour, pattern = background_features(clip, thing_mask(clip))
            colours.append(colour)
            patterns.append(pattern)
        mean = functional.normalize(torch.stack(patterns).mean(dim=0), dim=0)
        found[background] = torch.stack(colours).mean(dim=0), mean
    return found


def right_answers(reading: Reading, scene: Scene, thing: int = 0) -> Counter[str]:
    """Return 1 for each question about one thing of a scene that a reading answers rightly."""
    asked = scene.things[thing]
    return Counter(
        colour=int(reading.colour == asked.colour),
        motion=int(reading.motion == asked.motion),
        background=int(reading.background == scene.background),
        shape=int(all(shape == asked.shape for shape in reading.shapes)),
    )


def right_halves(readings: tuple[Reading, Reading], scene: Scene) -> Counter[str]:
    """Return 1 for each question that is answered rightly for both things of a scene."""
    left, right = (right_answers(reading, scene, n) for n, reading in enumerate(readings))
    return left & right
