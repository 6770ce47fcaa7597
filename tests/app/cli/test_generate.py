import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from svoo.app.cli import app
from svoo.app.cli.generate import video_name
from svoo.errors import ConfigError
from svoo.metrics.video import read_video
from svoo.plugin.request import Request

SIZES = ["--steps", "2", "--frames", "5", "--height", "32", "--width", "48"]
PROMPT = "a red circle moves left over a checkered floor"


def generate(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["generate", *SIZES, *arguments])


def test_a_video_is_written_and_told(tmp_path: Path) -> None:
    out = tmp_path / "new" / "v.mp4"
    done = generate("--prompt", PROMPT, "--out", str(out), "--method", "paper", "--fps", "8")
    assert done.exit_code == 0, done.output
    assert read_video(out).shape == (5, 32, 48, 3)
    assert "written: density" in done.stdout and "loading " in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80  # the last one has a path
    assert "note: the profile was measured with 7488 video tokens" in done.stderr
    assert "Warning" not in done.stderr


def test_the_result_as_json_or_not_at_all(tmp_path: Path) -> None:
    out = str(tmp_path / "v.npy")
    done = generate("--prompt", PROMPT, "--out", out, "--json")
    found = json.loads(done.stdout)
    assert found["tokens"] == 48 and found["density"] is None
    shown = generate("--prompt", PROMPT, "--out", out)
    assert "48 video tokens are too few for sparse attention" in " ".join(shown.stdout.split())
    quiet = generate("--prompt", PROMPT, "--out", out, "--quiet")
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "")


def test_prompts_from_a_file_and_what_is_done_is_skipped(tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "videos"
    prompts.write_text("# two\na red circle\n\na blue star\n")
    first = generate("--prompts", str(prompts), "--out", str(out))
    assert first.exit_code == 0, first.output
    names = sorted(path.name for path in out.iterdir())
    assert [name.rsplit("-", 1)[0] for name in names] == ["a-blue-star"] * 2 + ["a-red-circle"] * 2
    (out / names[0]).unlink()  # its record: that video is not finished
    again = generate("--prompts", str(prompts), "--out", str(out), "--json")
    found = [entry["request"]["prompt"] for entry in json.loads(again.stdout)]
    assert found == ["a red circle", "a blue star"]
    third = generate("--prompts", str(prompts), "--out", str(out))
    assert third.stdout.count("is there already") == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfe\x00", "cannot read the prompts"),
        (b"# nothing\n\n", "holds no prompt; write one per line"),
    ],
)
def test_prompt_files_that_are_none(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(data)
    refused = generate("--prompts", str(tmp_path / "p.txt"), "--out", str(tmp_path / "videos"))
    assert isinstance(refused.exception, ConfigError) and message in str(refused.exception)
    file = generate("--prompts", str(tmp_path / "p.txt"), "--out", str(tmp_path / "v.mp4"))
    assert "--out must be a folder" in str(file.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["p.txt"]


def test_names_stay_in_the_folder_and_tell_settings_apart() -> None:
    def name(prompt: str, **settings: Any) -> str:
        return video_name(Request(prompt=prompt, out=Path("x"), **settings))

    hostile = ("../../etc/passwd", "/etc/passwd", "..", "a" * 5000, "\x00\n", "C:\\con", "猫")
    for prompt in hostile:
        found = name(prompt)
        assert Path(found).name == found and found.endswith(".mp4") and len(found) < 100
        assert not found.startswith(".")
    assert len({name(prompt) for prompt in (*hostile, "a fox", "a-fox")}) == len(hostile) + 2
    assert name("a fox") == name("a fox") != name("a fox", seed=1)
