import pytest
from typer.testing import CliRunner

from svoo.app import bench
from svoo.app.cli import app


def test_bench_prints_a_block_and_fails_on_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = CliRunner().invoke(app, ["bench", "--tokens", "200"])
    assert shown.exit_code == 0, shown.output
    assert "   200 " in shown.output and "right" in shown.output
    monkeypatch.setattr(bench, "_TOLERANCE", -1.0)
    assert CliRunner().invoke(app, ["bench", "--tokens", "200"]).exit_code == 1
    refused = CliRunner().invoke(app, ["bench", "--tokens", "3"])
    assert refused.exit_code == 2 and "16" in refused.output
