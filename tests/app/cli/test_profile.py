import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from making import made_profile
from typer.testing import CliRunner

from svoo import Profile
from svoo.app.cli import app
from svoo.catalogue import find_model
from svoo.errors import ConfigError, FileError
from svoo.fleet.jobs import Outcome
from svoo.fleet.profiles import Recording
from svoo.profiles.windows import WindowTable
from svoo.storage import locked

SMALL = ["--steps", "4", "--frames", "5", "--height", "32", "--width", "48", "--rows", "8"]


def test_profile_hands_over_what_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def record(request: Any, inputs: Any, measuring: Any, *_: Any, **__: Any) -> Recording:
        asked.append((request, inputs, measuring))
        return Recording(made_profile())

    monkeypatch.setattr("svoo.fleet.profiles.record_by_name", record)
    (tmp_path / "prompts.txt").write_text("a fox\n")
    command = ["profile", "--model", "x/y", "--prompts", str(tmp_path / "prompts.txt"), "--json"]
    done = CliRunner().invoke(app, [*command, "--rows", "all", "--masses", "0.5,0.95"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["inputs"] == 3
    request, inputs, measuring = asked[0]
    assert (request.model, inputs) == ("x/y", [{"prompt": "a fox"}])
    assert (measuring.rows, measuring.masses) == (None, [0.5, 0.95])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "x/y"], "give --prompts FILE"),
        (["--masses", "0.5,2"], r"mass must be in \(0, 1\], got 2.0"),
        (["--masses", "half"], "--masses must be numbers, got 'half'"),
        (["--rows", "some"], "--rows must be a whole number or all, got 'some'"),
        (["--rows", "nan"], "--rows must be a whole number or all, got 'nan'"),
        (["--rows", "3.7,9"], "--rows must be a whole number or all"),
        (["--branch", "third"], "branch must be cond or both"),
        (["--dtype", "int4"], "--dtype must be one of float32, bfloat16, float16"),
        (["--inputs", "1000"], "--inputs must be 1 to the"),
        (["--guidance", "nan"], "--guidance must be a finite number"),
        (["--method", "svg2"], "--method must be svoo or sta, which have something to measure"),
        (["--method", "sta", "--ray", "x"], "--ray: for profiles of svoo"),
        (["--method", "sta", "--rows", "9", "--exact"], "--rows, --exact: for profiles of svoo"),
    ],
)
def test_bad_profile_requests(arguments: list[str], message: str) -> None:
    refused = CliRunner().invoke(app, ["profile", *arguments])
    assert isinstance(refused.exception, ConfigError)
    assert re.search(message, str(refused.exception))


def test_windows_never_replace_a_profile(tmp_path: Path) -> None:
    out = tmp_path / "profile.safetensors"
    made_profile().save(out)
    before = out.read_bytes()
    refused = CliRunner().invoke(app, ["profile", "--method", "sta", "--out", str(out)])
    assert isinstance(refused.exception, ConfigError)
    assert "is there and no table of windows" in str(refused.exception)
    assert out.read_bytes() == before


def test_windows_are_searched_for_sta(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = WindowTable(torch.full((2, 3, 4, 3), 5))
    asked: list[Any] = []

    def record(*arguments: Any) -> WindowTable:
        asked.append(arguments)
        return table

    monkeypatch.setattr("svoo.plugin.windows.record_windows", record)
    out = tmp_path / "windows.safetensors"
    command = ["profile", "--method", "sta", "--inputs", "1", "--out", str(out), "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {"out": str(out), "windows": table.windows.tolist()}
    request, inputs, _ = asked[0]
    assert request.out == out and len(inputs) == 1


def test_profile_end_to_end_on_the_embedded_model(tmp_path: Path) -> None:
    out = tmp_path / "p.safetensors"
    command = ["profile", "--inputs", "2", "--masses", "0.5,0.95", "--out", str(out), *SMALL]
    with locked(out):
        refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, FileError)
    assert "another svoo is writing" in str(refused.exception) and not out.exists()
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    found = Profile.load(out)
    mini = find_model("mini")  # below: of four steps, the first and the fourth
    assert found.density.shape == (2, 2, mini.layers, mini.heads, 2)
    assert (found.provenance["model"], found.provenance["tokens"]) == ("mini", "48")
    assert done.stdout.index("required density") < done.stdout.index("provenance")
    other = CliRunner().invoke(app, [*command[:-1], "9"])
    assert "asked rows: 8 there, 9 now" in str(other.exception)
    assert torch.equal(Profile.load(out).density, found.density)


def test_inputs_that_fail_are_listed_and_the_code_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Recording(None, [Outcome(0, 1, error="RuntimeError: no room")])
    monkeypatch.setattr("svoo.fleet.profiles.record_by_name", lambda *_, **__: failed)
    (tmp_path / "p.txt").write_text("a fox\na dog\n")
    command = ["profile", "--prompts", str(tmp_path / "p.txt"), "--out", str(tmp_path / "p")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "1 of 2 inputs failed" in done.stderr and "a dog: RuntimeError: no room" in done.stderr
