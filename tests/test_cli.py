import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from svoo import cli
from svoo.errors import ConfigError


def test_demo_prints_a_table_and_writes_results(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["demo", "--tokens", "600", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "speed-up" in result.output
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [row["name"] for row in rows] == ["dense", "paper", "default"]
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_what_the_library_refuses_is_one_message_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise ConfigError("mass must be in (0, 1], got 7")

    monkeypatch.setattr(cli, "app", refuse)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: mass must be in (0, 1], got 7\n"


def test_the_command_runs_as_a_module_and_has_help() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "svoo", "demo", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Example" in result.stdout
    bad = subprocess.run(
        [sys.executable, "-m", "svoo", "demo", "--tokens", "5"], capture_output=True, text=True
    )
    assert bad.returncode == 2
    assert "256" in bad.stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "svoo", *arguments], capture_output=True, text=True, check=False
    )


def test_doctor_and_models_print_tables() -> None:
    doctor = CliRunner().invoke(cli.app, ["doctor"])
    assert doctor.exit_code == 0
    assert "backend blocked" in doctor.output
    listed = CliRunner().invoke(cli.app, ["models"], env={"COLUMNS": "200"})
    assert listed.exit_code == 0
    assert "wan2.2-i2v-a14b" in listed.output


def test_generate_refuses_with_one_message_and_exit_code_2(tmp_path: Path) -> None:
    out = str(tmp_path / "v.mp4")
    for wrong, message in (
        (("--preset", "magic"), "--preset must be one of default, paper, release"),
        (("--model", str(tmp_path / "none")), "cannot load"),
        (("--mass", "7"), "mass must be a number in (0, 1], got 7.0"),
    ):
        result = run("generate", "--prompt", "x", "--out", out, *wrong)
        assert result.returncode == 2, result.stderr
        assert message in " ".join(result.stderr.split())
        assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []
