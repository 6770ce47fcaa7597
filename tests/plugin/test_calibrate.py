from pathlib import Path

import numpy as np
import pytest
import tiny
from PIL import Image

from svoo import Profile
from svoo.errors import ConfigError, FileError
from svoo.mini.vocabulary import vocabulary
from svoo.plugin import load as load_module
from svoo.plugin.calibrate import MINI_PROMPTS, read_inputs, record_by_name
from svoo.plugin.record import RecordConfig
from svoo.plugin.request import Request


def test_prompts_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("# a comment\n\n a fox \nein Käfer\n")
    assert read_inputs(path) == [{"prompt": "a fox"}, {"prompt": "ein Käfer"}]
    assert read_inputs(path, count=1) == [{"prompt": "a fox"}]
    with pytest.raises(ConfigError, match="--inputs must be 1 to the 2 prompts"):
        read_inputs(path, count=3)
    path.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="holds no prompt; write one per line"):
        read_inputs(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read the prompts"):
        read_inputs(path)
    with pytest.raises(ConfigError, match="cannot read the prompts"):
        read_inputs(tmp_path / "none.txt")


def test_images_go_with_prompts_by_name(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("a fox\na dog\n")
    with pytest.raises(ConfigError, match="--images must be a folder"):
        read_inputs(path, path)
    for name, level in (("b.png", 200), ("a.png", 10), ("notes.txt", None)):
        if level is None:
            (tmp_path / name).write_text("no picture")
        else:
            Image.fromarray(np.full((8, 8, 3), level, dtype=np.uint8)).save(tmp_path / name)
    inputs = read_inputs(path, tmp_path)
    assert [np.asarray(entry["image"])[0, 0, 0] for entry in inputs] == [10, 200]
    (tmp_path / "b.png").unlink()
    with pytest.raises(ConfigError, match="holds 1 pictures for 2 prompts"):
        read_inputs(path, tmp_path)


def test_the_embedded_models_prompts_are_in_its_words() -> None:
    known = set(vocabulary())
    inputs = read_inputs(MINI_PROMPTS)
    assert len(inputs) >= 8
    assert all(word in known for entry in inputs for word in entry["prompt"].split())


def test_recording_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "load_pipeline", lambda *_: tiny.build("wan2.1-t2v"))
    out = tmp_path / "p.safetensors"
    request = Request(prompt="", out=out, model="x/y", steps=2, frames=5, height=32, width=32)
    found = record_by_name(request, [{"prompt": "a fox"}], RecordConfig(rows=4, every=1))
    assert found.density.shape[1] == 2 and found.provenance["frames"] == "5"
    assert Profile.load(out).provenance == found.provenance
    picture = Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8))
    with pytest.raises(ConfigError, match="it takes no image"):
        record_by_name(request, [{"prompt": "a fox", "image": picture}], RecordConfig(rows=4))
    with pytest.raises(FileError, match="it is a folder"):
        record_by_name(
            Request(prompt="", out=tmp_path), [{"prompt": "a fox"}], RecordConfig(rows=4)
        )
