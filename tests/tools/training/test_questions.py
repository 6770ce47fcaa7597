from collections import Counter

from svoo.mini.vocabulary import DIRECTIONS, OTHER_MOTIONS
from tools.training.questions import held_out_scenes, two_thing_scenes
from tools.training.scenes import is_held_out


def test_held_out_prompts_are_held_out_and_even() -> None:
    scenes = held_out_scenes(DIRECTIONS, 48)
    things = [scene.things[0] for scene in scenes]
    for scene, thing in zip(scenes, things, strict=True):
        assert is_held_out(thing.colour, thing.shape, thing.motion, scene.background)
    assert set(Counter(thing.motion for thing in things).values()) == {6}
    shapes = Counter(thing.shape for thing in things)
    assert max(shapes.values()) - min(shapes.values()) <= 4
    assert len({scene.caption for scene in held_out_scenes(OTHER_MOTIONS, 24)}) == 24


def test_two_things_differ() -> None:
    for scene in two_thing_scenes(24):
        left, right = scene.things
        assert left.colour != right.colour
        assert left.shape != right.shape
        assert " while " in scene.caption
        for thing in scene.things:
            assert thing.motion != "spin" or thing.shape not in ("circle", "ring")
