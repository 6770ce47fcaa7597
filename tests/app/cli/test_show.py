import json
from pathlib import Path

import pytest
import tiny
from PIL import Image
from typer.testing import CliRunner

from svoo.app.cli import app
from svoo.errors import ConfigError

SIZES = ["--steps", "2", "--frames", "5", "--height", "64", "--width", "96"]


def test_a_head_is_drawn(tmp_path: Path) -> None:
    out = tmp_path / "new" / "a.png"
    command = ["show", "--method", "sol", "--layer", "1", "--head", "1", "--out", str(out), *SIZES]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "a.png written: step 1, kept " in done.stdout
    with Image.open(out) as image:
        assert image.width > 300
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (found["layer"], found["head"]) == (1, 1) and 0 < found["density"] <= 1


def test_a_model_that_needs_a_picture_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svoo.plugin.load.open_pipeline", lambda *_: tiny.build("wan2.1-i2v"))
    error = CliRunner().invoke(app, ["show", "--out", str(tmp_path / "a.png"), *SIZES]).exception
    assert isinstance(error, ConfigError) and "makes video from an image" in str(error)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "a.jpg"], "must end in .png"),
        (["--method", "magic"], "--method must be one of"),
        (["--method", "dense"], "keeps everything"),
        (["--method", "sol", "--step", "0"], "layer 1 is dense at step 0"),
        (["--method", "sol", "--layer", "9"], "no attention call with step 1, layer 9"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: list[str], words: str) -> None:
    command = ["show", "--layer", "1", "--out", str(tmp_path / "a.png"), *SIZES, *arguments]
    error = CliRunner().invoke(app, command).exception
    assert isinstance(error, ConfigError) and words in str(error)
    assert not list(tmp_path.iterdir())
