import random
from dataclasses import replace

import pytest
import torch

from svoo.mini.vocabulary import DIRECTIONS, MOTIONS, SHAPES
from tools.training.questions import held_out_scenes, two_thing_scenes
from tools.training.reader import (
    NOTHING,
    read_clip,
    read_halves,
    read_shape,
    right_answers,
    right_halves,
)
from tools.training.scenes import ask_for, render


@pytest.mark.parametrize(("size", "count"), [((96, 160), 12), ((144, 256), 2)])
def test_drawn_clips_are_read(size: tuple[int, int], count: int) -> None:
    for scene in held_out_scenes(MOTIONS, count):
        clip = (render(scene, 49, *size) + 1) / 2
        reading = read_clip(clip)
        assert sum(right_answers(reading, scene).values()) == 4, (scene.caption, reading)


def test_two_things_are_read_by_halves() -> None:
    for scene in two_thing_scenes(4):
        readings = read_halves((render(scene, 49, 96, 160) + 1) / 2)
        assert sum(right_halves(readings, scene).values()) == 4, (scene.caption, readings)
        swapped = replace(scene, things=scene.things[::-1])
        assert right_halves(readings, swapped)["colour"] == 0


def test_directions_are_read_from_four_frames() -> None:
    for scene in held_out_scenes(DIRECTIONS, 8):
        clip = (render(scene, 49, 96, 160) + 1) / 2
        assert read_clip(clip[::16]).motion == scene.things[0].motion


def test_a_thing_that_changes_its_shape_is_none() -> None:
    clips = [
        render(ask_for("red", shape, "left", "a brick wall", random.Random(0)), 49, 96, 160)
        for shape in ("circle", "star")
    ]
    reading = read_clip((torch.cat((clips[0][:40], clips[1][40:])) + 1) / 2)
    assert reading.shapes == ("circle", "circle", "star")
    assert reading.shape == "changing"


def test_a_place_needs_its_pattern() -> None:
    scene = ask_for("red", "circle", "left", "a checkered floor", random.Random(0))
    bricks = replace(scene, background="a brick wall")
    clip, other = ((render(each, 3, 96, 160) + 1) / 2 for each in (scene, bricks))
    grey = other.mean(dim=1, keepdim=True)
    grey = (grey - grey.mean()) / grey.std() * 0.16 + 0.46
    assert read_clip(clip).background == "a checkered floor"
    assert read_clip(grey.expand(-1, 3, -1, -1)).background != "a checkered floor"
    flat = torch.full_like(clip, 0.46) + 0.02 * torch.randn(
        clip.shape, generator=torch.Generator().manual_seed(0)
    )
    assert read_clip(flat).background != "a checkered floor"


def test_nothing_is_nothing() -> None:
    empty = torch.full((9, 3, 96, 160), 0.4)
    reading = read_clip(empty)
    assert (reading.colour, reading.motion, reading.shape) == (NOTHING, NOTHING, NOTHING)
    assert read_shape(torch.zeros(10, 10, dtype=torch.bool)) == NOTHING
    assert len(SHAPES) == 5
