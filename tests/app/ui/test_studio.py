from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from PIL import Image

from svoo.app.ui.queue import Stopped
from svoo.app.ui.settings import Settings
from svoo.app.ui.studio import Studio
from svoo.catalogue import find_model
from svoo.errors import ConfigError, ModelError
from svoo.metrics.video import read_video
from svoo.mini.pipeline import load
from svoo.plugin.request import Request
from svoo.plugin.run import Made, run_applied

SETTINGS = Settings(
    prompt="a red fox", width=64, height=64, frames=9, fps=8, steps=3, seed=5, method="paper"
)


def studio(name: str = "wan2.1-t2v") -> Studio:
    request = Request(prompt="", out=Path("unused"), model=f"some/{name}")
    return Studio(tiny.build(name), request)


@pytest.fixture(scope="module")
def shared() -> Studio:
    return studio()


def make(maker: Studio, folder: Path, settings: Settings = SETTINGS) -> Any:
    return maker.make(settings, folder, lambda *_progress: None)


def test_a_video_its_figures_and_its_map(shared: Studio, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    outcome = shared.make(SETTINGS, tmp_path, lambda *progress: seen.append(progress))
    assert seen == [
        ("denoising", 0, 3),
        ("denoising", 1, 3),
        ("denoising", 2, 3),
        ("decoding", 3, 3),
        ("writing", 3, 3),
    ]
    assert read_video(tmp_path / "video.mp4").shape == (9, 64, 64, 3)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"video.mp4", "thumbnail.webp", "density.png"}
    figures = outcome.figures
    assert figures["method"] == "svoo" and 0 < figures["density"] <= 1
    assert 0 < figures["seconds"]["denoising"] <= figures["seconds"]["total"]
    assert "against_dense" not in figures and figures["machine"]["torch"]


def test_the_dense_video_beside_it_comes_from_the_same_noise(
    shared: Studio, tmp_path: Path
) -> None:
    seen: list[tuple[str, int, int]] = []
    both = replace(SETTINGS, dense=True)
    outcome = shared.make(both, tmp_path / "both", lambda *progress: seen.append(progress))
    assert [step for _, step, _ in seen] == [0, 1, 2, 3, 3, 4, 5, 6, 6]
    assert {steps for *_, steps in seen} == {6} and seen[5][0] == "dense video"
    alone = make(shared, tmp_path / "dense", replace(SETTINGS, method="dense"))
    assert alone.figures["density"] is None and not (tmp_path / "dense/density.png").exists()
    beside = read_video(tmp_path / "both/dense.mp4")
    assert np.array_equal(beside, read_video(tmp_path / "dense/video.mp4"))
    against = outcome.figures["against_dense"]
    assert against["speed_up"] == pytest.approx(
        against["seconds"]["denoising"] / outcome.figures["seconds"]["denoising"]
    )
    assert against["ssim"] > 0.9 and (against["psnr"] is None or against["psnr"] > 20)


def test_cancelling_stops_the_loop_and_leaves_the_pipeline_whole(
    shared: Studio, tmp_path: Path
) -> None:
    make(shared, tmp_path / "before")
    seen: list[int] = []

    def stop(_phase: str, step: int, _steps: int) -> None:
        seen.append(step)
        if step == 1:
            raise Stopped

    with pytest.raises(Stopped):
        shared.make(SETTINGS, tmp_path / "stopped", stop)
    assert seen == [0, 1]  # no further step, and nothing was decoded or written
    assert not (tmp_path / "stopped").exists()
    make(shared, tmp_path / "after")
    names = ("before", "after")
    before, after = ((tmp_path / name / "video.mp4").read_bytes() for name in names)
    assert before == after


def test_a_picture_is_where_the_video_starts(tmp_path: Path) -> None:
    maker = studio("wan2.1-i2v")
    assert maker.facts.takes_picture and maker.facts.name == "wan2.1-i2v"
    Image.new("RGB", (64, 64), "red").save(tmp_path / "picture.png")
    settings = replace(SETTINGS, picture=True, steps=1)
    maker.check(settings)
    make(maker, tmp_path, settings)
    red = read_video(tmp_path / "video.mp4")
    Image.new("RGB", (64, 64), "blue").save(tmp_path / "picture.png")
    make(maker, tmp_path, settings)
    assert not np.array_equal(red, read_video(tmp_path / "video.mp4"))
    with pytest.raises(ConfigError, match="from an image: give one"):
        maker.check(SETTINGS)


def test_a_model_that_takes_both_has_a_pipeline_for_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = replace(find_model("mini"), takes_image=True)
    monkeypatch.setattr("svoo.app.ui.studio.known_model", lambda _name: both)
    maker = Studio.open(Request(prompt="", out=Path("unused")))
    assert maker.facts.takes_picture and not maker.facts.needs_picture
    text = replace(SETTINGS, prompt=maker.facts.example, width=48, height=32, frames=5, steps=1)
    pictured = replace(text, picture=True)
    Image.new("RGB", (48, 32), "red").save(tmp_path / "picture.png")
    for settings in (text, pictured, text):
        maker.check(settings)
        make(maker, tmp_path, settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"picture": True}, "takes no image"),
        ({"method": "dense", "quality": "fast"}, "--quality is svoo's"),
        ({"method": "release"}, "needs a model of the catalogue"),
        ({"frames": 1 << 30}, "needs at least"),
        ({"width": 65}, "mp4 needs even sides, got 65x64"),
    ],
)
def test_what_cannot_be_made_is_refused_before(
    shared: Studio, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        shared.check(replace(SETTINGS, **changes))


def test_a_video_of_no_numbers_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = studio()

    def broken(*arguments: Any) -> Made:
        made = run_applied(*arguments)
        return replace(made, frames=np.full_like(made.frames, np.nan))

    monkeypatch.setattr("svoo.app.ui.studio.run_applied", broken)
    with pytest.raises(ModelError, match="values that are no numbers"):
        make(maker, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_why_a_small_video_stays_dense_is_told(shared: Studio, tmp_path: Path) -> None:
    outcome = make(shared, tmp_path, replace(SETTINGS, method=None))
    assert outcome.figures["density"] is None
    assert any("too few for sparse attention" in note for note in outcome.notes)


def test_the_dense_video_beside_it_says_nothing_of_profiles(tmp_path: Path) -> None:
    maker = Studio(load(), Request(prompt="", out=Path("unused")))
    small = replace(SETTINGS, prompt=maker.facts.example, width=48, height=32, frames=5, steps=1)
    outcome = make(maker, tmp_path, replace(small, method="svoo", dense=True))
    assert not [note for note in outcome.notes if "profile" in note]
    assert "error" in outcome.figures


def test_facts_are_the_catalogues_or_the_pipelines_own(shared: Studio) -> None:
    own = shared.facts
    assert (own.width, own.height, own.frames, own.side_step) == (832, 480, 81, 1)
    mini = Studio(load(), Request(prompt="", out=Path("unused"))).facts
    assert (mini.name, mini.width, mini.frames, mini.side_step) == ("mini", 256, 49, 16)
    assert "COLOUR" in mini.hint and "paper" in mini.methods
    assert mini.takes_picture == find_model("mini").takes_image and not mini.needs_picture
