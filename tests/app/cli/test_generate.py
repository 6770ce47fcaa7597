import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from svoo.app.cli import app
from svoo.errors import ConfigError
from svoo.methods import available_methods
from svoo.metrics.video import read_video

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


@pytest.mark.parametrize("method", [row.name for row in available_methods()])
def test_every_method_can_be_asked_for(tmp_path: Path, method: str) -> None:
    out = str(tmp_path / "v.npy")
    done = generate("--prompt", PROMPT, "--out", out, "--method", method, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["request"]["method"] == method


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


@pytest.mark.parametrize(
    ("given", "address"), [(["--ray"], "any"), (["--ray", "head:6379"], "head:6379"), ([], None)]
)
def test_ray_with_and_without_an_address(
    given: list[str], address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def note(address: str | None, **_: Any) -> Any:
        asked.append(address)
        raise ConfigError("seen")

    monkeypatch.setattr("svoo.fleet.cluster.open_cluster", note)
    (tmp_path / "p.txt").write_text("a red circle")
    prompts = ["--prompts", str(tmp_path / "p.txt")]
    for order in ([*given, *prompts], [*prompts, *given]):
        found = generate(*order, "--out", str(tmp_path / "videos"))
        assert str(found.exception) == "seen"
    assert asked == [address, address]


def test_options_of_many_videos_need_a_file_of_prompts(tmp_path: Path) -> None:
    one_more = ["--retries", "1"]
    for option in (["--ray"], ["--workers", "2"], ["--samples", "2"], ["--vbench"], one_more):
        refused = generate("--prompt", PROMPT, *option, "--out", str(tmp_path / "v.mp4"))
        assert "go with --prompts FILE" in str(refused.exception)
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_does_not_answer_comes_before_any_work(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'svoo[fleet]'")
    (tmp_path / "p.txt").write_text("a red circle")
    refused = generate(
        "--prompts", str(tmp_path / "p.txt"), "--ray", "nowhere", "--out", str(tmp_path / "v")
    )
    assert isinstance(refused.exception, ConfigError)
    assert "--ray takes host:port" in str(refused.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["p.txt"]


def test_a_prompt_that_fails_is_listed_and_the_code_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from svoo.plugin.run import Generator

    make = Generator.__call__

    def fail(self: Generator, request: Any, on_step: Any) -> Any:
        if "star" in request.prompt:
            raise RuntimeError("no star")
        return make(self, request, on_step)

    monkeypatch.setattr(Generator, "__call__", fail)
    prompts, out = tmp_path / "prompts.txt", tmp_path / "videos"
    prompts.write_text("a blue star\na red circle\n")
    command = ["--prompts", str(prompts), "--out", str(out), "--retries", "0"]
    failed = generate(*command, "--json")
    assert failed.exit_code == 1
    assert "1 of 2 videos could not be made" in failed.stderr
    assert "a blue star: RuntimeError: no star" in failed.stderr
    rows = json.loads(failed.stdout)
    assert rows[0]["error"] == "RuntimeError: no star" and rows[1]["density"] is None
    assert len(list(out.iterdir())) == 2
    monkeypatch.undo()
    shown = generate(*command)
    assert shown.exit_code == 0 and "1 of 1: " in shown.stdout
    assert len(list(out.iterdir())) == 4
