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
