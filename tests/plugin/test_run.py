import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from svoo import SVOOConfig
from svoo.catalogue import Model, find_model
from svoo.errors import ConfigError, FileError, ModelError, ProfileError
from svoo.metrics.video import read_video
from svoo.plugin import load as load_module
from svoo.plugin.request import Request
from svoo.plugin.run import (
    Generator,
    Made,
    call_arguments,
    generate,
    read_materials,
    record_path,
    run_applied,
)
from svoo.storage import locked

SIZES: dict[str, Any] = {"steps": 3, "frames": 9, "height": 64, "width": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved pipeline, as users have them on disk."""
    path: Path = tmp_path_factory.mktemp("pipeline")
    tiny.build("wan2.1-t2v").save_pretrained(path)
    return path


def request(folder: Path, tmp_path: Path, **changes: Any) -> Request:
    settings: dict[str, Any] = {
        "prompt": "a red fox",
        "out": tmp_path / "v.mp4",
        "model": str(folder),
    }
    return Request(**(settings | SIZES | changes))


def test_a_video_and_its_record_are_written(folder: Path, tmp_path: Path) -> None:
    seen = []
    asked = request(folder, tmp_path, method="paper")
    record = generate(asked, lambda done, steps: seen.append((done, steps)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert read_video(tmp_path / "v.mp4").shape == (9, 64, 64, 3)
    stored = json.loads((tmp_path / "v.json").read_text())
    assert stored["request"]["seed"] == 0
    assert stored["config"]["mass"] == SVOOConfig.paper().mass
    assert 0 < stored["density"] <= 1
    seconds = stored["seconds"]
    assert 0 < seconds["loading"] < seconds["loading"] + seconds["denoising"] <= seconds["total"]
    assert "torch" in stored["machine"]
    assert "layer" in record["summary"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v.json", "v.mp4"]


def test_bad_requests_leave_nothing_behind(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the pipeline refuses this request: .*divisible by 16"):
        generate(request(folder, tmp_path, height=50))
    with pytest.raises(ProfileError, match="cannot read the profile"):
        missing = tmp_path / "none.safetensors"
        generate(request(folder, tmp_path, method="paper", profile=missing))
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_path_is_found_before_generating(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "load_pipeline", lambda *_: pytest.fail("too late"))
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file" / "v.mp4", tmp_path):  # the folder holds other files
        with pytest.raises(FileError, match="cannot write"):
            generate(request(folder, tmp_path, out=out))


def test_ctrl_c_leaves_no_half_file_and_restores(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tiny.build("wan2.1-t2v")
    monkeypatch.setattr(load_module, "load_pipeline", lambda *_: pipe)

    def interrupt(_done: int, _steps: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(request(folder, tmp_path), interrupt)
    assert list(tmp_path.iterdir()) == []
    assert "_svoo_handle" not in pipe.transformer.__dict__


def test_a_video_of_no_numbers_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run_applied

    def broken(*arguments: Any) -> Made:
        found = made(*arguments)
        return replace(found, frames=np.full_like(found.frames, np.nan))

    monkeypatch.setattr("svoo.plugin.run.run_applied", broken)
    with pytest.raises(ModelError, match="values that are no numbers"):
        generate(request(folder, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_two_do_not_write_one_video(folder: Path, tmp_path: Path) -> None:
    wanted = request(folder, tmp_path)
    with locked(wanted.out), pytest.raises(FileError, match="another svoo is writing"):
        generate(wanted)


def test_a_record_never_describes_another_video(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = request(folder, tmp_path)
    generate(wanted)
    assert record_path(wanted.out).exists()

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("svoo.plugin.run.write_record", full)
    with pytest.raises(OSError, match="no space left"):
        generate(wanted)
    assert wanted.out.exists() and not record_path(wanted.out).exists()


def test_the_catalogue_gives_the_call_arguments(tmp_path: Path) -> None:
    plain = Request(prompt="x", out=tmp_path / "x.mp4", steps=7, seed=2**64 - 1)
    arguments = call_arguments(plain, find_model("wan2.2-t2v-a14b"))
    assert (arguments["prompt"], arguments["num_inference_steps"]) == ("x", 7)
    assert arguments["generator"].initial_seed() % 2**64 == 2**64 - 1


def test_one_pipeline_makes_several_videos(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Request] = []
    load = load_module.load_pipeline

    def note(request: Request, model: Model | None) -> Any:
        loads.append(request)
        return load(request, model)

    monkeypatch.setattr(load_module, "load_pipeline", note)
    names = ("a.npy", "b.npy", "c.gif")
    wanted = [request(folder, tmp_path, out=tmp_path / name) for name in names]
    generator = Generator(wanted[0], read_materials(wanted[0]))
    records = [generator(entry) for entry in wanted]
    assert len(loads) == 1
    assert [record["seconds"]["loading"] > 0 for record in records] == [True, False, False]
    assert np.array_equal(read_video(tmp_path / "a.npy"), read_video(tmp_path / "b.npy"))
    assert read_video(tmp_path / "c.gif").shape == (9, 64, 64, 3)


def test_the_json_never_overwrites_the_video(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "load_pipeline", lambda *_: pytest.fail("too late"))
    for name in ("v.json", "v.avi", "v.MP4.part"):
        with pytest.raises(ConfigError, match=r"must end in \.mp4, \.gif, \.webm, \.npy or be a"):
            generate(request(folder, tmp_path, out=tmp_path / name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:the profile was measured with 7488")
def test_a_small_video_stays_dense_unless_a_method_is_named(tmp_path: Path) -> None:
    small: dict[str, Any] = {"steps": 2, "frames": 5, "height": 32, "width": 48}
    base: dict[str, Any] = {"prompt": "a red circle", "out": tmp_path / "v.npy", **small}
    dense = generate(Request(**base))
    assert dense["density"] is None and dense["config"] is None
    assert "48 video tokens are too few for sparse attention" in " ".join(dense["summary"].split())
    named = generate(Request(**base, method="svoo"))
    assert "too few" not in named["summary"] and named["config"] is not None
