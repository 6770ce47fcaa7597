import json
from pathlib import Path

import pytest
import tiny
from typer.testing import CliRunner

from svoo.app.cli import app
from svoo.errors import ConfigError


def test_demo_prints_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("svoo.app.demo.load", lambda: tiny.build("wan2.1-t2v"))
    sizes = ["--steps", "5", "--frames", "9", "--height", "64", "--width", "64"]
    command = ["demo", "--out", str(tmp_path / "out"), "--prompt", "a red fox", *sizes]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    for word in ("dense", "paper", "default", "speed-up", "PSNR", "index.html"):
        assert word in done.stdout
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert [row["mode"] for row in found["modes"]] == ["dense", "paper", "default"]


def test_a_bad_seed_is_found_before_work(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["demo", "--seed", "-1", "--out", str(tmp_path / "out")])
    assert isinstance(refused.exception, ConfigError)
    assert list(tmp_path.iterdir()) == []
