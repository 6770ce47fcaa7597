import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from PIL import Image

from svoo import SVOOConfig
from svoo.catalogue import find_model
from svoo.errors import ConfigError, FileError, ModelError, ProfileError
from svoo.metrics.video import read_video
from svoo.plugin import run as generate_module
from svoo.plugin.run import (
    Request,
    call_arguments,
    check_image,
    generate,
    load_pipeline,
    make_config,
)

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
    record = generate(request(folder, tmp_path), lambda done, steps: seen.append((done, steps)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert read_video(tmp_path / "v.mp4").shape == (9, 64, 64, 3)
    stored = json.loads((tmp_path / "v.json").read_text())
    assert stored["request"]["seed"] == 0
    assert stored["config"]["mass"] == SVOOConfig().mass
    assert 0 < stored["density"] <= 1
    assert stored["seconds"]["denoising"] <= stored["seconds"]["total"]
    assert "torch" in stored["machine"]
    assert "layer" in record["summary"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v.json", "v.mp4"]


def test_presets_and_mass() -> None:
    base: dict[str, Any] = {"prompt": "x", "out": Path("x.mp4")}
    wan = find_model("wan2.1-t2v-14b")
    assert make_config(Request(**base, preset="paper"), wan) == SVOOConfig.paper("wan2.1-t2v-14b")
    assert make_config(Request(**base, preset="release"), wan) == SVOOConfig.release(
        "wan2.1-t2v-14b"
    )
    assert make_config(Request(**base, mass=0.7), None) == SVOOConfig(mass=0.7)
    with pytest.raises(ConfigError, match="release preset needs a model of the catalogue"):
        make_config(Request(**base, preset="release"), None)
    with pytest.raises(ConfigError, match="mass must be"):
        make_config(Request(**base, mass=7), wan)


def test_the_catalogue_gives_the_call_defaults(tmp_path: Path) -> None:
    model = find_model("wan2.2-t2v-a14b")
    plain = Request(prompt="x", out=tmp_path / "x.mp4", steps=7)
    arguments = call_arguments(plain, model)
    assert (arguments["num_inference_steps"], arguments["num_frames"]) == (7, 81)
    assert (arguments["guidance_scale"], arguments["guidance_scale_2"]) == (5.0, 3.0)


def test_an_image_where_none_is_taken_and_none_where_one_is(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(tmp_path / "i.png")
    base: dict[str, Any] = {"prompt": "x", "out": tmp_path / "x.mp4"}
    with_image = Request(**base, image=tmp_path / "i.png")
    with pytest.raises(ConfigError, match="makes video from text: it takes no image"):
        check_image(with_image, tiny.build("wan2.1-t2v"), given=True)
    with pytest.raises(ConfigError, match="makes video from an image: give one"):
        check_image(Request(**base), tiny.build("wan2.1-i2v"), given=False)
    assert "image" in call_arguments(with_image, None)
    (tmp_path / "bad.png").write_text("no picture")
    with pytest.raises(ConfigError, match="cannot read the image"):
        call_arguments(Request(**base, image=tmp_path / "bad.png"), None)


def test_a_model_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    absent = Request(prompt="x", out=tmp_path / "x.mp4", model=str(tmp_path / "nothing"))
    with pytest.raises(ModelError, match=r"cannot load .*\n.*without a network only folders"):
        load_pipeline(absent, None)


def test_bad_requests_leave_nothing_behind(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the pipeline refuses this request: .*divisible by 16"):
        generate(request(folder, tmp_path, height=50))
    with pytest.raises(ProfileError, match="cannot read the profile"):
        generate(request(folder, tmp_path, profile=tmp_path / "none.safetensors"))
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_path_is_found_before_generating(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate_module, "load_pipeline", lambda *_: pytest.fail("too late"))
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file" / "v.mp4", tmp_path):
        with pytest.raises(FileError, match="cannot write"):
            generate(request(folder, tmp_path, out=out))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_here(folder: Path, tmp_path: Path) -> None:
    for device in ("cuda", "toaster"):
        with pytest.raises(ConfigError, match=f"--device {device} cannot be used here"):
            generate(request(folder, tmp_path, device=device))
    with pytest.raises(ConfigError, match="--offload moves idle parts off a GPU"):
        generate(request(folder, tmp_path, offload=True))
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_no_half_file_and_restores(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tiny.build("wan2.1-t2v")
    monkeypatch.setattr(generate_module, "load_pipeline", lambda *_: pipe)

    def interrupt(_done: int, _steps: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(request(folder, tmp_path), interrupt)
    assert list(tmp_path.iterdir()) == []
    assert "_svoo_handle" not in pipe.transformer.__dict__
