"""The world of the embedded model: captioned clips of moving things, drawn from a seed.

A `Scene` is a description in units of the picture's height (x runs from 0 to 16 / 9, y from 0 to
1) and of a 49-frame clip (time runs from 0 to 1), so that any crop, size or span of it
can be drawn without drawing the rest.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from svoo.mini.vocabulary import (
    BACKGROUNDS,
    COLOURS,
    DIRECTIONS,
    MOTIONS,
    OTHER_MOTIONS,
    OTHER_WORDINGS,
    SHAPES,
    STRAIGHT_WORDINGS,
)
from tools.training.backgrounds import ASPECT, PAINTERS

CLIP_FRAMES = 49  # one unit of time
EXTENT = 1.18  # how many radii the farthest point of any shape is from its middle
BOUNCES = 2  # in a clip
# A spinning thing turns by one corner in a clip, until it looks as it did: how far it has come on
# that way depends on the time alone, whatever its shape is.
CORNERS = {"triangle": 3, "square": 4, "star": 5}
# What clips show, by what was learnt last: words of two things, bouncing and spinning.
ALONE = 0.5  # of the scenes have one thing
STRAIGHT = 0.5  # of the motions
HARD = {"bounce": 2, "spin": 2}  # how much more often than the other motions that are not straight


@dataclass(frozen=True)
class Thing:
    """One moving object: what it is, and where its path starts from."""

    colour: str
    shape: str
    motion: str
    x: float
    y: float
    radius: float
    travel: float  # how far it goes in one clip, or up, or around


@dataclass(frozen=True)
class Scene:
    """A background and one or two things, with the caption that says so."""

    background: str
    background_phase: tuple[float, float, float]
    things: tuple[Thing, ...]
    caption: str


def is_held_out(colour: str, shape: str, motion: str, background: str) -> bool:
    """Whether a combination is kept from training as the only thing of a clip, to ask the model
    for what it has not seen so."""
    numbers = (
        list(COLOURS).index(colour),
        3 * SHAPES.index(shape),
        7 * MOTIONS.index(motion),
        2 * list(BACKGROUNDS).index(background),
    )
    return sum(numbers) % 10 == 0


@dataclass(frozen=True)
class Room:
    """The part of the picture's width that a thing keeps to, and the sizes that suit it."""

    left: float
    right: float
    smallest: float
    largest: float


# A little narrower than the picture, so that pictures of 5 : 3 show all of it too.
WHOLE = Room(ASPECT / 2 - 0.82, ASPECT / 2 + 0.82, 0.21, 0.25)
HALVES = (
    Room(ASPECT / 2 - 0.82, ASPECT / 2 - 0.03, 0.17, 0.20),
    Room(ASPECT / 2 + 0.03, ASPECT / 2 + 0.82, 0.17, 0.20),
)


def _draw_thing(chance: random.Random, motion: str, room: Room, shape: str | None = None) -> Thing:
    """Draw a thing that stays in its room, whole, from the first frame to the last."""
    # A spinning circle or ring would look as if it stood still.
    shapes = ("square", "triangle", "star") if motion == "spin" else SHAPES
    radius = chance.uniform(room.smallest, room.largest)
    reach = EXTENT * radius + 0.02
    free_x, free_y = room.right - room.left - 2 * reach, 1 - 2 * reach
    step_x, step_y = DIRECTIONS.get(motion, (1, 1))
    travel = chance.uniform(0.8, 1.0) * min(free_x if step_x else free_y, free_y if step_y else 1)
    if not step_y:
        travel = min(travel, 0.8)
    # What the motion leaves of the room is for where it begins.
    moves = motion in DIRECTIONS or motion == "orbit"
    spare_x = min(0.12, (free_x - travel * abs(step_x) * moves) / 2)
    spare_y = min(0.06, (free_y - travel * abs(step_y) * moves) / 2)
    return Thing(
        colour=chance.choice(list(COLOURS)),
        shape=shape or chance.choice(shapes),
        motion=motion,
        x=(room.left + room.right) / 2 + chance.uniform(-spare_x, spare_x),
        y=0.96 - radius if motion == "bounce" else 0.5 + chance.uniform(-spare_y, spare_y),
        radius=radius,
        travel=travel,
    )


def _draw_motion(chance: random.Random) -> str:
    if chance.random() < STRAIGHT:
        return chance.choice(list(DIRECTIONS))
    return chance.choices(OTHER_MOTIONS, [HARD.get(motion, 1) for motion in OTHER_MOTIONS])[0]


def draw_scene(chance: random.Random) -> Scene:
    """Draw a scene for training: half of them have one thing, which is never a held-out
    combination; of two things the first is on the left, and each may be one."""
    background = chance.choice(list(BACKGROUNDS))
    phases = (chance.random(), chance.random(), chance.random())
    if chance.random() < ALONE:
        things: tuple[Thing, ...] = (_draw_thing(chance, _draw_motion(chance), WHOLE),)
        if is_held_out(things[0].colour, things[0].shape, things[0].motion, background):
            return draw_scene(chance)
    else:
        things = tuple(_draw_thing(chance, _draw_motion(chance), room) for room in HALVES)
    return Scene(background, phases, things, _caption(chance, background, things))


def ask_for(colour: str, shape: str, motion: str, background: str, chance: random.Random) -> Scene:
    """Draw a one-thing scene with the given contents; the rest (place, size, wording) is
    chance."""
    return ask_for_things(((colour, shape, motion),), background, chance)


def ask_for_things(
    asked: Sequence[tuple[str, str, str]], background: str, chance: random.Random
) -> Scene:
    """Draw a scene with the given colours, shapes and motions, from left to right."""
    rooms = (WHOLE,) if len(asked) == 1 else HALVES
    things = tuple(
        replace(_draw_thing(chance, motion, room, shape), colour=colour)
        for (colour, shape, motion), room in zip(asked, rooms, strict=True)
    )
    phases = (chance.random(), chance.random(), chance.random())
    return Scene(background, phases, things, _caption(chance, background, things))


def _caption(chance: random.Random, background: str, things: tuple[Thing, ...]) -> str:
    parts = []
    for thing in things:
        if thing.motion in DIRECTIONS:
            wording = chance.choice(STRAIGHT_WORDINGS).format(thing.motion)
        else:
            wording = chance.choice(OTHER_WORDINGS[thing.motion])
        article = "an" if thing.colour[0] in "aeiou" else "a"
        article = chance.choice((article, article, "the"))
        parts.append(f"{article} {thing.colour} {thing.shape} {wording}")
    where = chance.choice(BACKGROUNDS[background])
    return f"{' while '.join(parts)} {where} {background}"


def render(
    scene: Scene,
    frames: int,
    height: int,
    width: int,
    *,
    first_frame: int = 0,
    window: tuple[int, int, int, int] | None = None,
) -> Tensor:
    """Draw a scene as float32 `[frames, 3, rows, columns]` in [-1, 1].

    `height` and `width` are the whole picture's; `window` (top, left, rows, columns) draws a part
    of it.
    """
    top, left, rows, columns = window or (0, 0, height, width)
    x, y = grid(height, width)
    x, y = x[:, :, left : left + columns], y[:, top : top + rows]
    time = (torch.arange(first_frame, first_frame + frames) / (CLIP_FRAMES - 1)).view(frames, 1, 1)
    pixel = 1.0 / height
    picture = PAINTERS[scene.background](x, y, time, scene.background_phase, pixel)
    picture = picture.expand(frames, 3, rows, columns).clone()
    for thing in scene.things:
        _paint_thing(picture, thing, x, y, time, pixel)
    return picture.clamp_(0, 1) * 2 - 1


def grid(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return x `[1, 1, columns]` and y `[1, rows, 1]` of the middles of a picture's cells, in
    heights; the middle of the world is the picture's, however wide it is."""
    y = ((torch.arange(rows) + 0.5) / rows).view(1, rows, 1)
    x = ((torch.arange(columns) + 0.5) / rows).view(1, 1, columns)
    return x + (ASPECT - columns / rows) / 2, y


def pose(thing: Thing, time: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return centre x, centre y, radius and turn of a thing at each time.

    Words decide a path but for its size: it bounces from the floor, orbits clockwise from the top
    and spins clockwise from upright.
    """
    x = torch.full_like(time, thing.x)
    y = torch.full_like(time, thing.y)
    radius = torch.full_like(time, thing.radius)
    turn = torch.zeros_like(time)
    if thing.motion in DIRECTIONS:
        step_x, step_y = DIRECTIONS[thing.motion]
        x = x + step_x * thing.travel * (time - 0.5)
        y = y + step_y * thing.travel * (time - 0.5)
    elif thing.motion == "bounce":
        y = y - thing.travel * torch.sin(math.pi * BOUNCES * time).abs()
    elif thing.motion == "orbit":
        angle = 2 * math.pi * (time - 0.25)
        x = x + 0.5 * thing.travel * torch.cos(angle)
        y = y + 0.5 * thing.travel * torch.sin(angle)
    elif thing.motion == "grow":
        radius = radius * (0.6 + 0.85 * time)
    elif thing.motion == "spin":
        turn = 2 * math.pi * time / CORNERS.get(thing.shape, 1)
    return x, y, radius, turn


def cover(scene: Scene, times: Tensor, rows: int, columns: int) -> Tensor:
    """Return how much of each of a cell's 2 x 2 parts things cover, `[times, rows, columns, 4]`,
    0 to 1."""
    x, y = grid(2 * rows, 2 * columns)
    covered = torch.zeros(len(times), 2 * rows, 2 * columns)
    for thing in scene.things:
        distance, radius = _distance(thing, x, y, times.view(-1, 1, 1))
        covered = torch.maximum(covered, torch.sigmoid(-distance * radius * 4 * rows))
    cells = covered.unflatten(2, (columns, 2)).unflatten(1, (rows, 2))
    return cells.permute(0, 1, 3, 2, 4).flatten(3)


def _distance(thing: Thing, x: Tensor, y: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Return the signed distance of points from a thing's outline in its radii, and the radius."""
    centre_x, centre_y, radius, turn = pose(thing, time)
    u, v = (x - centre_x) / radius, (y - centre_y) / radius
    cos, sin = torch.cos(turn), torch.sin(turn)
    return outline(thing.shape, u * cos + v * sin, v * cos - u * sin), radius


def near_things(scene: Scene, times: Tensor, rows: int, columns: int) -> Tensor:
    """Say which cells of a grid lie on or close by a thing at each time: bool `[times, rows,
    columns]`."""
    x, y = grid(rows, columns)
    near = torch.zeros(len(times), rows, columns, dtype=torch.bool)
    for thing in scene.things:
        centre_x, centre_y, radius, _ = pose(thing, times.view(-1, 1, 1))
        near |= torch.hypot(x - centre_x, y - centre_y) < 1.3 * radius
    return near


def outline(shape: str, x: Tensor, y: Tensor) -> Tensor:
    """Signed distance to the outline of a shape of radius about 1, negative inside (a bound, not
    exact)."""
    length = (x * x + y * y).sqrt()
    if shape == "circle":
        return length - 1
    if shape == "square":
        return torch.maximum(x.abs(), y.abs()) - 0.85
    if shape == "triangle":
        # With equal sides: turned by one corner it looks as it did.
        return torch.maximum(y, math.sqrt(0.75) * x.abs() - y / 2) - EXTENT / 2
    if shape == "ring":
        return (length - 0.74).abs() - 0.26
    # A five-pointed star: fold the angle into one point and measure to its edge.
    angle = torch.atan2(x, -y)
    fold = (angle % (2 * math.pi / 5) - math.pi / 5).abs()  # pi/5 at a tip, 0 between two tips
    tip, dent = EXTENT, 0.46
    px, py = length * torch.sin(fold), length * torch.cos(fold)
    tip_x, tip_y = tip * math.sin(math.pi / 5), tip * math.cos(math.pi / 5)
    edge_x, edge_y = tip_x, tip_y - dent
    norm = math.hypot(edge_x, edge_y)
    return -(edge_y * px - edge_x * (py - dent)) / norm


def _paint_thing(
    picture: Tensor, thing: Thing, x: Tensor, y: Tensor, time: Tensor, pixel: float
) -> None:
    centre_x, centre_y, radius, turn = pose(thing, time)
    u, v = (x - centre_x) / radius, (y - centre_y) / radius
    cos, sin = torch.cos(turn), torch.sin(turn)
    edge = pixel / radius
    shadow = outline(
        thing.shape, (u - 0.22) * cos + (v - 0.30) * sin, (v - 0.30) * cos - (u - 0.22) * sin
    )
    picture *= (1 - 0.45 * torch.sigmoid(-shadow * 9)).unsqueeze(1)
    distance = outline(thing.shape, u * cos + v * sin, v * cos - u * sin)
    cover = torch.sigmoid(-distance / edge * 2.5).unsqueeze(1)
    light = 0.92 - 0.20 * (0.6 * u + 0.8 * v)
    light = light * (1 - 0.30 * torch.exp(-((distance / 0.10) ** 2)))
    glint = 0.35 * torch.exp(-((u + 0.38) ** 2 + (v + 0.42) ** 2) / 0.05)
    colour = torch.tensor(COLOURS[thing.colour]).view(1, 3, 1, 1)
    body = colour * light.clamp(0, 1.1).unsqueeze(1) + glint.unsqueeze(1)
    picture.lerp_(body, cover)
