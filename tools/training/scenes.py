"""The world of the embedded model: captioned clips of moving things, drawn from a seed.

A `Scene` is a description in units of the picture's height (x runs from 0 to width / height, y
from 0 to 1) and of a 49-frame clip (time runs from 0 to 1), so that any crop, size or span of it
can be drawn without drawing the rest.
"""

from __future__ import annotations

import math
import random
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


@dataclass(frozen=True)
class Thing:
    """One moving object: what it is, and where its path starts from."""

    colour: str
    shape: str
    motion: str
    x: float
    y: float
    radius: float
    travel: float  # how far a straight motion goes in one clip
    phase: float


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
    places = (
        list(COLOURS).index(colour),
        3 * SHAPES.index(shape),
        7 * MOTIONS.index(motion),
        2 * list(BACKGROUNDS).index(background),
    )
    return sum(places) % 10 == 0


def _draw_thing(chance: random.Random, motion: str, centre_x: float, size: float) -> Thing:
    # A spinning circle or ring would look as if it stood still.
    shapes = ("square", "triangle", "star") if motion == "spin" else SHAPES
    room = 0.62 if abs(DIRECTIONS.get(motion, (1, 0))[0]) else 0.5
    return Thing(
        colour=chance.choice(list(COLOURS)),
        shape=chance.choice(shapes),
        motion=motion,
        x=centre_x + chance.uniform(-0.16, 0.16) * size,
        y=0.5 + chance.uniform(-0.10, 0.10),
        radius=size * chance.uniform(0.15, 0.20),
        travel=size * room * chance.uniform(0.85, 1.15),
        phase=chance.random(),
    )


def _draw_motion(chance: random.Random) -> str:
    straight, diagonal = list(DIRECTIONS)[:4], list(DIRECTIONS)[4:]
    kind = chance.random()
    if kind < 0.45:
        return chance.choice(straight)
    return chance.choice(diagonal) if kind < 0.70 else chance.choice(OTHER_MOTIONS)


def draw_scene(chance: random.Random) -> Scene:
    """Draw a scene for training: four in five have one thing, which is never a held-out
    combination; one of two things may be."""
    background = chance.choice(list(BACKGROUNDS))
    phases = (chance.random(), chance.random(), chance.random())
    if chance.random() < 0.8:
        things: tuple[Thing, ...] = (_draw_thing(chance, _draw_motion(chance), ASPECT / 2, 1.0),)
        if is_held_out(things[0].colour, things[0].shape, things[0].motion, background):
            return draw_scene(chance)
    else:
        things = tuple(
            _draw_thing(chance, _draw_motion(chance), ASPECT * place, 0.8) for place in (0.3, 0.7)
        )
    return Scene(background, phases, things, _caption(chance, background, things))


def ask_for(colour: str, shape: str, motion: str, background: str, chance: random.Random) -> Scene:
    """Draw a one-thing scene with the given contents; the rest (place, size, wording) is
    chance."""
    drawn = _draw_thing(chance, motion, ASPECT / 2, 1.0)
    things = (replace(drawn, colour=colour, shape=shape),)
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
    y = ((torch.arange(top, top + rows) + 0.5) / height).view(1, rows, 1)
    x = ((torch.arange(left, left + columns) + 0.5) / height).view(1, 1, columns)
    time = (torch.arange(first_frame, first_frame + frames) / (CLIP_FRAMES - 1)).view(frames, 1, 1)
    pixel = 1.0 / height
    picture = PAINTERS[scene.background](x, y, time, scene.background_phase, pixel)
    picture = picture.expand(frames, 3, rows, columns).clone()
    for thing in scene.things:
        _paint_thing(picture, thing, x, y, time, pixel)
    return picture.clamp_(0, 1) * 2 - 1


def pose(thing: Thing, time: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return centre x, centre y, radius and turn of a thing at each time."""
    x = torch.full_like(time, thing.x)
    y = torch.full_like(time, thing.y)
    radius = torch.full_like(time, thing.radius)
    turn = torch.zeros_like(time)
    if thing.motion in DIRECTIONS:
        step_x, step_y = DIRECTIONS[thing.motion]
        shorter = 0.8 if step_x and step_y else 1.0
        x = x + step_x * thing.travel * shorter * (time - 0.5)
        y = y + step_y * thing.travel * shorter * (time - 0.5)
    elif thing.motion == "bounce":
        height = thing.travel
        y = 0.92 - radius - height * (torch.sin(math.pi * (2.5 * time + thing.phase))).abs()
    elif thing.motion == "orbit":
        angle = 2 * math.pi * (time + thing.phase)
        x = x + 0.36 * thing.travel * torch.cos(angle)
        y = y + 0.36 * thing.travel * torch.sin(angle)
    elif thing.motion == "grow":
        radius = radius * (0.45 + 1.2 * time)
    elif thing.motion == "spin":
        turn = 2 * math.pi * (1.25 * time + thing.phase)
    return x, y, radius, turn


def near_things(scene: Scene, times: Tensor, rows: int, columns: int) -> Tensor:
    """Say which cells of a grid lie on or close by a thing at each time: bool `[times, rows,
    columns]`."""
    y = ((torch.arange(rows) + 0.5) / rows).view(1, rows, 1)
    x = ((torch.arange(columns) + 0.5) / rows).view(1, 1, columns)
    near = torch.zeros(len(times), rows, columns, dtype=torch.bool)
    for thing in scene.things:
        centre_x, centre_y, radius, _ = pose(thing, times.view(-1, 1, 1))
        near |= torch.hypot(x - centre_x, y - centre_y) < 1.3 * radius
    return near


def _signed_distance(shape: str, x: Tensor, y: Tensor) -> Tensor:
    """Signed distance to the outline of a shape of radius about 1, negative inside (a bound, not
    exact)."""
    length = (x * x + y * y).sqrt()
    if shape == "circle":
        return length - 1
    if shape == "square":
        return torch.maximum(x.abs(), y.abs()) - 0.85
    if shape == "triangle":
        return torch.maximum(y - 0.65, 0.866 * x.abs() - 0.5 * y - 0.55)
    if shape == "ring":
        return (length - 0.72).abs() - 0.28
    # A five-pointed star: fold the angle into one point and measure to its edge.
    angle = torch.atan2(x, -y)
    fold = (angle % (2 * math.pi / 5) - math.pi / 5).abs()  # pi/5 at a tip, 0 between two tips
    tip, dent = 1.12, 0.5
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
    shadow = _signed_distance(
        thing.shape, (u - 0.22) * cos + (v - 0.30) * sin, (v - 0.30) * cos - (u - 0.22) * sin
    )
    picture *= (1 - 0.45 * torch.sigmoid(-shadow * 9)).unsqueeze(1)
    distance = _signed_distance(thing.shape, u * cos + v * sin, v * cos - u * sin)
    cover = torch.sigmoid(-distance / edge * 2.5).unsqueeze(1)
    light = 0.92 - 0.20 * (0.6 * u + 0.8 * v)
    light = light * (1 - 0.30 * torch.exp(-((distance / 0.10) ** 2)))
    glint = 0.35 * torch.exp(-((u + 0.38) ** 2 + (v + 0.42) ** 2) / 0.05)
    colour = torch.tensor(COLOURS[thing.colour]).view(1, 3, 1, 1)
    body = colour * light.clamp(0, 1.1).unsqueeze(1) + glint.unsqueeze(1)
    picture.lerp_(body, cover)
