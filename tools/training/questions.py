"""What the model is asked: held-out combinations, each answer about equally often."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

from svoo.mini.vocabulary import BACKGROUNDS, COLOURS, MOTIONS, SHAPES
from tools.training.scenes import Scene, ask_for, ask_for_things, is_held_out


def held_out_scenes(motions: Iterable[str], count: int) -> list[Scene]:
    """Return scenes of combinations that training never saw alone in a clip, every motion equally
    often and every other answer about so."""
    motions = list(motions)
    combinations = [
        (colour, shape, motion, background)
        for colour in COLOURS
        for shape in SHAPES
        for motion in motions
        for background in BACKGROUNDS
        if is_held_out(colour, shape, motion, background)
        and not (motion == "spin" and shape in ("circle", "ring"))  # nobody could see it turn
    ]
    chance = random.Random(0)
    chance.shuffle(combinations)
    seen: Counter[str] = Counter()
    picked: list[tuple[str, str, str, str]] = []
    for number in range(count):
        motion = motions[number % len(motions)]
        left = [entry for entry in combinations if entry[2] == motion and entry not in picked]
        picked.append(min(left, key=lambda entry: sum(seen[answer] for answer in entry)))
        seen.update(picked[-1])
    return [ask_for(*answers, random.Random(number)) for number, answers in enumerate(picked)]


def two_thing_scenes(count: int) -> list[Scene]:
    """Return scenes of two things whose colours and shapes differ."""
    found = []
    for number in range(count):
        chance = random.Random(f"two {number}")
        colours, shapes = chance.sample(list(COLOURS), 2), chance.sample(SHAPES, 2)
        motions = [
            chance.choice([m for m in MOTIONS if m != "spin" or shape not in ("circle", "ring")])
            for shape in shapes
        ]
        asked = list(zip(colours, shapes, motions, strict=True))
        found.append(ask_for_things(asked, chance.choice(list(BACKGROUNDS)), chance))
    return found
