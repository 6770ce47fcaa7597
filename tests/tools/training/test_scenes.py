import random
from dataclasses import replace

import pytest
import torch

from svoo.mini.vocabulary import BACKGROUNDS, COLOURS, DIRECTIONS, MOTIONS, SHAPES, vocabulary
from tools.training.scenes import (
    EXTENT,
    ask_for,
    ask_for_things,
    cover,
    draw_scene,
    grid,
    is_held_out,
    near_things,
    pose,
    render,
)


def test_the_same_seed_draws_the_same_clip() -> None:
    one, two = draw_scene(random.Random(3)), draw_scene(random.Random(3))
    assert one == two
    assert torch.equal(render(one, 5, 36, 64), render(two, 5, 36, 64))


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_a_window_is_a_piece_of_the_whole(background: str) -> None:
    scene = ask_for("red", "star", "up", background, random.Random(0))
    whole = render(scene, 9, 48, 80)
    assert whole.shape == (9, 3, 48, 80)
    assert bool(((whole >= -1) & (whole <= 1)).all())
    part = render(scene, 4, 48, 80, first_frame=3, window=(8, 16, 20, 24))
    torch.testing.assert_close(part, whole[3:7, :, 8:28, 16:40])


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_things_move_where_the_caption_says(direction: str) -> None:
    scene = ask_for("blue", "circle", direction, "a wooden floor", random.Random(1))
    assert direction in scene.caption
    x, y, _, _ = pose(scene.things[0], torch.tensor([0.0, 1.0]))
    moved = (
        torch.sign((x[1] - x[0]).round(decimals=3)),
        torch.sign((y[1] - y[0]).round(decimals=3)),
    )
    assert (int(moved[0]), int(moved[1])) == DIRECTIONS[direction]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("colour", COLOURS)
def test_the_asked_colour_is_in_the_picture(colour: str, shape: str) -> None:
    scene = ask_for(colour, shape, "grow", "a starry sky", random.Random(2))
    last = (render(scene, 1, 72, 128, first_frame=48)[0] + 1) / 2
    wanted = torch.tensor(COLOURS[colour]).view(3, 1, 1)
    near = (last - wanted).abs().amax(dim=0) < 0.2
    assert near.float().mean() > 0.01


def test_everything_that_a_thing_changes_is_near_it() -> None:
    """What differs from the empty background is the thing and its shadow."""
    for seed in range(8):
        scene = draw_scene(random.Random(seed))
        times = torch.tensor([0.0, 16 / 48, 1.0])
        near = near_things(scene, times, 72, 128)
        full, empty = (
            torch.stack([render(s, 1, 72, 128, first_frame=f)[0] for f in (0, 16, 48)])
            for s in (scene, replace(scene, things=()))
        )
        changed = (full - empty).abs().amax(dim=1) > 0.5
        assert changed.any()
        assert (changed & ~near).sum() < 0.02 * changed.sum()
        assert near.float().mean() < 0.35


def test_things_stay_whole_in_view_and_in_their_half() -> None:
    for seed in range(200):
        scene = draw_scene(random.Random(seed))
        for number, thing in enumerate(scene.things):
            x, y, radius, _ = pose(thing, torch.linspace(0, 1, 13))
            reach = (EXTENT if thing.shape in ("star", "triangle") else 1) * radius
            left, right = 16 / 18 - 10 / 12, 16 / 18 + 10 / 12  # of a picture of 5 : 3
            if len(scene.things) == 2:
                left, right = (left, 16 / 18) if number == 0 else (16 / 18, right)
            assert bool(((x - reach > left) & (x + reach < right)).all())
            assert bool(((y - reach > 0) & (y + radius < 1)).all())


def test_two_things_are_drawn_from_left_to_right() -> None:
    scene = ask_for_things(
        (("red", "star", "up"), ("blue", "ring", "spin")), "rippling water", random.Random(0)
    )
    assert [thing.colour for thing in scene.things] == ["red", "blue"]
    assert scene.things[0].x < scene.things[1].x
    assert scene.caption.index("red star") < scene.caption.index("blue ring")


def test_the_world_is_in_the_middle_of_any_picture() -> None:
    for rows, columns in ((12, 20), (18, 32), (10, 30)):
        x, y = grid(rows, columns)
        assert float(x.mean()) == pytest.approx(8 / 9)
        assert float(y.mean()) == pytest.approx(0.5)
        assert float(x[0, 0, 1] - x[0, 0, 0]) == pytest.approx(1 / rows)


def test_cover_is_the_share_of_each_quarter_of_a_cell() -> None:
    scene = ask_for("red", "square", "left", "a brick wall", random.Random(0))
    covered = cover(scene, torch.tensor([0.0, 1.0]), 18, 32)
    assert covered.shape == (2, 18, 32, 4)
    area = (2 * 0.85 * scene.things[0].radius * 18) ** 2
    for frame in covered.mean(dim=-1):
        assert float(frame.sum()) == pytest.approx(area, rel=0.03)


def test_captions_stay_in_the_vocabulary_and_vary() -> None:
    words, captions = set(vocabulary()), set()
    scenes = [draw_scene(random.Random(seed)) for seed in range(400)]
    for scene in scenes:
        assert set(scene.caption.split()) <= words
        captions.add(scene.caption)
    assert len(captions) > 390
    assert {scene.background for scene in scenes} == set(BACKGROUNDS)
    assert {thing.motion for scene in scenes for thing in scene.things} == set(MOTIONS)
    assert 0.4 < sum(len(scene.things) == 2 for scene in scenes) / 400 < 0.6


def test_held_out_combinations_never_come_in_training() -> None:
    for seed in range(500):
        scene = draw_scene(random.Random(seed))
        if len(scene.things) == 1:
            thing = scene.things[0]
            assert not is_held_out(thing.colour, thing.shape, thing.motion, scene.background)
    held = sum(
        is_held_out(colour, shape, motion, background)
        for colour in COLOURS
        for shape in SHAPES
        for motion in DIRECTIONS
        for background in BACKGROUNDS
    )
    assert held >= 96  # enough to ask for 48 of them


def test_spinning_things_are_not_round() -> None:
    for seed in range(300):
        for thing in draw_scene(random.Random(seed)).things:
            assert thing.motion != "spin" or thing.shape not in ("circle", "ring")


@pytest.mark.parametrize("shape", ["triangle", "square", "star"])
def test_a_spinning_thing_looks_at_the_end_as_it_did_and_not_between(shape: str) -> None:
    scene = ask_for("red", shape, "spin", "a wooden floor", random.Random(0))
    first, middle, last = (cover(scene, torch.tensor([time]), 24, 40) for time in (0.0, 0.5, 1.0))
    torch.testing.assert_close(first, last, atol=1e-4, rtol=0)
    assert float((first - middle).abs().max()) > 0.5
