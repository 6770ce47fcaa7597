from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import studying
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from svoo.catalogue import find_model
from svoo.methods.base import Call
from svoo.methods.svg2 import SVG2Config
from svoo.plugin import trial
from svoo.plugin.request import Request
from svoo.studies.base import Skipped
from svoo.studies.lab import Lab
from svoo.studies.pipelines import Pipelines
from svoo.studies.runs import Setting
from svoo.studies.scale import Scale, VideoSize
from svoo.studies.scoring import Scoring

pytestmark = pytest.mark.filterwarnings("ignore:the profile was measured with")
SIZE = VideoSize(9, 32, 48)
MODEL = find_model("mini")
PROMPT = {"prompt": "a blue star moves right over a grassy field"}
DENSE, SPARSE = Setting("dense", None), Setting("svg2", SVG2Config(dense_steps=0))


@pytest.fixture(scope="module")
def pipelines() -> Pipelines:
    return Pipelines(Request(prompt="", out=Path("out")))


@pytest.fixture
def lab(pipelines: Pipelines) -> Lab:
    scale = Scale(SIZE, SIZE, 2, every=1)
    results = studying.empty()
    return Lab(pipelines, [PROMPT], scale, results, machine="m", backend="auto")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the runs that are really made."""
    names: list[str] = []
    run = trial.run_trial

    def count(pipe: Any, name: str, *others: Any, **named: Any) -> Any:
        names.append(name)
        return run(pipe, name, *others, **named)

    monkeypatch.setattr("svoo.studies.lab.run_trial", count)
    yield names


def test_a_run_is_made_once_and_compared_with_dense(lab: Lab, made: list[str]) -> None:
    key = lab.run(SPARSE, PROMPT, SIZE)
    assert made == ["dense", "svg2"]
    assert lab.run(SPARSE, PROMPT, SIZE) == key and len(made) == 2
    row = lab.results.find("run", key)
    assert row is not None
    assert (row["method"], row["tokens"], row["steps"]) == ("svg2", 72, 2)
    assert 0 < row["density"] <= 1 and row["seconds"] > 0 and row["dense_seconds"] > 0
    assert row["config"]["dense_steps"] == 0 and row["ssim"] <= 1
    dense = lab.results.find("run", lab.run(DENSE, PROMPT, SIZE))
    assert dense is not None and dense["psnr"] is None and dense["ssim"] is None
    assert made == ["dense", "svg2"]  # the dense video was at hand


def test_dense_is_timed_again_after_a_few_runs(lab: Lab, made: list[str]) -> None:
    for seed in range(6):
        config = SVG2Config(dense_steps=0, seed=seed)
        lab.run(Setting(f"s{seed}", config), PROMPT, SIZE)
    assert made == ["dense", "s0", "s1", "dense", "s2", "s3", "dense", "s4", "s5"]


def test_where_no_time_counts_dense_is_made_once(lab: Lab, made: list[str]) -> None:
    lab.timed = False
    for seed in range(4):
        config = SVG2Config(dense_steps=0, seed=seed)
        key = lab.run(Setting(f"s{seed}", config), PROMPT, SIZE)
        row = lab.results.find("run", key)
        assert row is not None and row["timed"] is False
    assert made == ["dense", "s0", "s1", "s2", "s3"]


def test_what_another_or_a_busy_machine_has_timed_is_made_again_if_asked(
    lab: Lab, made: list[str]
) -> None:
    key = lab.run(SPARSE, PROMPT, SIZE)
    row = lab.results.find("run", key)
    assert row is not None and (row["others"] is None or 0 <= row["others"] <= 1)
    lab.results.add("quality", "job", {"run": key})
    for changes, stands in (
        ({"others": 0.0}, True),
        ({"others": None}, True),
        ({"others": 0.5}, False),
        ({"machine": "another", "others": 0.0}, False),
        ({"timed": False, "others": 0.0}, False),
    ):
        lab.results.add("run", key, {**row, **changes})
        lab.retime = False
        assert lab.has("quality", "job") and not lab.has("quality", "another")
        lab.retime = True
        assert lab.has("quality", "job") is stands
    count = len(made)
    lab.run(SPARSE, PROMPT, SIZE)
    again = lab.results.find("run", key)
    assert made[count:] == ["svg2"] and again is not None and again["machine"] == "m"


class Counted:
    """Scores a video by its frames."""

    names: tuple[str, ...] = ("frames",)

    def __call__(self, frames: NDArray[np.floating[Any]]) -> dict[str, float]:
        return {"frames": float(len(frames))}


def test_a_dense_run_is_foretold_from_a_step(lab: Lab, made: list[str]) -> None:
    assert 0 < lab.time_dense(SIZE) < 600
    assert made == []


def test_keys_tell_runs_apart(lab: Lab) -> None:
    keys = [
        lab.run_key(DENSE, PROMPT, SIZE),
        lab.run_key(SPARSE, PROMPT, SIZE),
        lab.run_key(replace(SPARSE, profile=None), PROMPT, SIZE),
        lab.run_key(replace(SPARSE, seed=1), PROMPT, SIZE),
        lab.run_key(SPARSE, {"prompt": "other"}, SIZE),
        lab.run_key(SPARSE, PROMPT, VideoSize(13, 32, 48)),
        lab.run_key(SPARSE, PROMPT, SIZE, "image"),
    ]
    assert len(set(keys)) == len(keys)
    picture = {**PROMPT, "image": "a picture"}  # says something only where one is taken
    assert lab.run_key(SPARSE, picture, SIZE) == keys[1]
    assert lab.run_key(SPARSE, picture, SIZE, "image") not in keys
    renamed = replace(SPARSE, name="another name")
    assert lab.run_key(renamed, PROMPT, SIZE) == keys[1]


def test_scores_are_taken_where_they_are_asked_for(lab: Lab) -> None:
    lab.scoring = Scoring(Counted())
    row = lab.results.find("run", lab.run(DENSE, PROMPT, SIZE, score=True))
    assert row is not None and row["scores"] == {"frames": 9.0}
    lab.results.records.clear()
    row = lab.results.find("run", lab.run(DENSE, PROMPT, SIZE))
    assert row is not None and row["scores"] == {}


def test_a_run_with_scores_serves_those_who_ask_for_none(lab: Lab, made: list[str]) -> None:
    lab.scoring = Scoring(Counted())
    key = lab.run(SPARSE, PROMPT, SIZE, score=True)
    assert lab.run(SPARSE, PROMPT, SIZE) == key and made == ["dense", "svg2"]
    lab.scoring = Scoring()
    assert lab.run(SPARSE, PROMPT, SIZE, score=True) == key and len(made) == 2


def test_a_run_that_lacks_scores_is_made_again_where_they_can_be_had(
    lab: Lab, made: list[str]
) -> None:
    def add(key: str) -> None:
        lab.results.add("quality", "job", {"run": key})

    add(lab.run(SPARSE, PROMPT, SIZE, score=True))
    assert lab.has("quality", "job", scored=True)  # there is nothing to score with
    lab.scoring = Scoring(Counted())
    assert lab.has("quality", "job") and not lab.has("quality", "job", scored=True)
    add(lab.run(SPARSE, PROMPT, SIZE, score=True))
    assert made == ["dense", "svg2", "svg2"] and lab.has("quality", "job", scored=True)
    both = Counted()
    both.names = ("frames", "more")  # another score can be had now
    lab.scoring = Scoring(both)
    assert not lab.has("quality", "job", scored=True)
    lab.scoring = Scoring(Counted(), lpips=True)
    assert lab.has("quality", "job") and not lab.has("quality", "job", scored=True)
    key = lab.run(SPARSE, PROMPT, SIZE, score=True)
    assert made.count("svg2") == 3
    row = lab.results.find("run", key)
    assert row is not None
    lab.results.add("run", key, {**row, "lpips": 0.1})
    assert lab.has("quality", "job", scored=True)
    lab.results.add("run", key, {**row, "ssim": None})  # the dense video has none
    assert lab.has("quality", "job", scored=True)


def test_every_call_is_shown_once_per_layer_and_step(lab: Lab) -> None:
    seen: list[tuple[int, int]] = []

    def observe(call: Call, query: Tensor, key: Tensor) -> None:
        assert query.shape == key.shape == (1, MODEL.heads, 72, MODEL.head_dim)
        seen.append((call.step, call.layer))

    lab.look(PROMPT, SIZE, observe)
    assert seen == [(step, layer) for step in range(2) for layer in range(MODEL.layers)]


def test_densities_are_those_of_the_tokens(lab: Lab) -> None:
    found = lab.densities(PROMPT, SIZE)
    assert torch.tensor(found["by_head"]).shape == (MODEL.layers, MODEL.heads, 2)
    assert torch.tensor(found["by_step"]).shape == (2, MODEL.layers, 2)
    by_head, by_step = (torch.tensor(found[name]) for name in ("by_head", "by_step"))
    assert torch.allclose(by_head.mean(dim=1), by_step.mean(dim=0), atol=2e-4)
    assert bool((by_head[..., 0] < by_head[..., 1]).all())  # more mass needs more keys
    before = len(lab.results.records)
    assert lab.densities(PROMPT, SIZE) == found and len(lab.results.records) == before


def test_a_model_without_image_input_says_so(lab: Lab) -> None:
    lab.pipelines = Pipelines(lab.pipelines.request)
    lab.pipelines.model = replace(MODEL, takes_image=False)
    with pytest.raises(Skipped, match="takes no image"):
        lab.require_image()


def test_image_to_video_begins_with_a_picture_of_another_video(lab: Lab) -> None:
    lab.pipelines = Pipelines(lab.pipelines.request)
    lab.pipelines.model = replace(MODEL, takes_image=True)
    lab.require_image()
    call = lab.call(PROMPT, SIZE, "image")
    assert isinstance(call["image"], Image.Image) and call["image"].size == (48, 32)
    given = Image.new("RGB", (48, 32), "red")
    assert lab.call({**PROMPT, "image": given}, SIZE, "image")["image"] is given
    assert "image" not in lab.call(PROMPT, SIZE)
    row = lab.results.find("run", lab.run(SPARSE, PROMPT, SIZE, "image"))
    assert row is not None and row["method"] == "svg2"
