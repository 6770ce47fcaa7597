import math
import random

import pytest
import torch

from svoo.mini.vocabulary import COLOURS, SHAPES
from tools.training.backgrounds import ASPECT
from tools.training.build import make_transformer
from tools.training.codes import Clip
from tools.training.guides import (
    FACTORS,
    OWNERS,
    PRODUCT,
    THING_WEIGHT,
    Guides,
    targets,
    weigh,
    word_owners,
)
from tools.training.scenes import ask_for, ask_for_things, pose

FRAMES, CELLS = [0, 6, 12], (12, 20)


def test_targets_say_where_things_are() -> None:
    one = ask_for("red", "square", "right", "a wooden floor", random.Random(0))
    two = ask_for_things(
        (("red", "star", "up"), ("blue", "ring", "grow")), "a brick wall", random.Random(1)
    )
    wanted = targets([Clip(one), Clip(two)], FRAMES, CELLS)
    assert wanted.cover.shape == (2, 3, 12, 20, 4)
    assert wanted.near.shape == (2, 3, 12, 20)
    assert wanted.place.shape == (2, 3, 20, 3)
    assert set(wanted.shape[0].tolist()) == {SHAPES.index("square")}
    assert wanted.shape[1].tolist() == [SHAPES.index("star")] * 10 + [SHAPES.index("ring")] * 10
    blue, red = (list(COLOURS).index(name) for name in ("blue", "red"))
    assert wanted.colour[1].tolist() == [red] * 10 + [blue] * 10
    assert wanted.motion[0, 0].tolist() == [1, 0, 0, 0, 0, 0]
    assert wanted.motion[1, 0].tolist() == [0, -1, 0, 0, 0, 0]
    assert wanted.motion[1, -1].tolist() == [0, 0, 0, 0, 1, 0]
    assert bool((wanted.place[0, :, 0, 0].diff() > 0).all())  # moves right
    assert bool((wanted.place[1, :, -1, 2].diff() > 0).all())  # grows
    assert wanted.turn.shape == (2, 3, 20, 2)
    assert bool((wanted.turn == torch.tensor([1.0, 0.0])).all())  # nothing turns
    spins = ask_for("red", "star", "spin", "a wooden floor", random.Random(0))
    turned = 5 * pose(spins.things[0], Clip(spins).times(FRAMES))[3]  # a star has five corners
    found = targets([Clip(spins)], FRAMES, CELLS)
    expected = torch.stack((turned.cos(), turned.sin()), dim=1)
    torch.testing.assert_close(found.turn[0, :, 0], expected)
    # What is covered lies around the thing's middle.
    x, _, radius, _ = pose(one.things[0], torch.tensor([0.5]))
    columns = wanted.cover[0, 1].mean(dim=(0, 2))
    middle = (columns @ ((torch.arange(20) + 0.5) / 12)) / columns.sum()
    assert float(middle) == pytest.approx(float(x) - (ASPECT - 20 / 12) / 2, abs=0.01)
    area = float(wanted.cover[0, 1].mean(dim=-1).sum()) / 144
    assert area == pytest.approx(float((1.7 * radius) ** 2), rel=0.05)


def test_guides_that_know_have_no_error_and_dropped_captions_do_not_count() -> None:
    transformer = make_transformer()
    guides = Guides(transformer)
    scene = ask_for("red", "square", "right", "a wooden floor", random.Random(0))
    wanted = targets([Clip(scene), Clip(scene)], FRAMES, CELLS)
    for parameter in guides.parameters():
        torch.nn.init.zeros_(parameter)
    state = torch.zeros(2, 3 * 12 * 20, 128)
    guides._heard |= dict.fromkeys((FACTORS, PRODUCT), state)
    errors, places = guides.errors(wanted, FRAMES, torch.tensor([1.0, 0.0]))
    assert errors["shape"].item() == pytest.approx(math.log(len(SHAPES)))
    assert errors["cover"].item() == pytest.approx(math.log(2))
    assert places[0] == places[1]
    assert errors["place"] == places[0]
    assert errors["time"].item() == pytest.approx(1.5**2 * 2 / 3)

    with torch.no_grad():
        for number in range(3):
            guides.place.weight[number, number] = 1
        guides.motion.bias[0] = 1
        guides.shape.bias[SHAPES.index("square")] = 100
    known = wanted.place.unsqueeze(2).expand(-1, -1, 12, -1, -1).flatten(1, 3)
    state = torch.cat((known, torch.zeros(2, 720, 125)), dim=-1)
    state[1] += 5
    guides._heard |= dict.fromkeys((FACTORS, PRODUCT), state)
    errors, places = guides.errors(wanted, FRAMES, torch.tensor([1.0, 0.0]))
    for name in ("shape", "place", "motion"):
        assert errors[name].item() == pytest.approx(0, abs=1e-6), name
    assert places[1].item() == pytest.approx(25)
    single, _ = guides_of_a_picture(guides, scene)
    assert "time" not in single


def guides_of_a_picture(guides: Guides, scene: object) -> tuple[dict[str, torch.Tensor], object]:
    wanted = targets([Clip(scene)], [0], CELLS)  # type: ignore[arg-type]
    guides._heard |= dict.fromkeys((FACTORS, PRODUCT), torch.zeros(1, 240, 128))
    return guides.errors(wanted, [0], torch.ones(1))


def test_words_belong_to_things() -> None:
    one = "a red circle moves left in front of a brick wall"
    two = "the red star spins while an orange ring moves up and left over a wooden floor"
    assert word_owners(one) == ["first"] * 5 + ["neither"] * 6
    assert word_owners(two) == ["first"] * 4 + ["neither"] + ["second"] * 7 + ["neither"] * 4
    assert word_owners("") == []
    guides = Guides(make_transformer())
    with torch.no_grad():
        guides.word.weight.zero_()
        guides.word.bias.zero_()
    states = torch.zeros(3, 20, 64)
    found = guides.word_error(states, [one, two, ""])
    assert found.item() == pytest.approx(math.log(len(OWNERS)))
    with torch.no_grad():
        guides.word.weight[:, :3] = 50 * torch.eye(3)
    for number, caption in enumerate((one, two)):
        for place, owner in enumerate(word_owners(caption)):
            states[number, place, OWNERS.index(owner)] = 1
    assert guides.word_error(states, [one, two, ""]).item() == pytest.approx(0, abs=1e-6)
    assert guides.word_error(states, ["", "", ""]).item() == 0


def test_errors_near_a_thing_weigh_more() -> None:
    near = torch.zeros(2, 1, 4, 4, dtype=torch.bool)
    near[0, 0, 1, 1] = True
    weights = weigh(near)
    assert weights.shape == (2, 1, 1, 4, 4)
    assert float(weights.mean()) == pytest.approx(1)
    assert float(weights.max() / weights.min()) == pytest.approx(1 + THING_WEIGHT)
