from pathlib import Path

import pytest
from typer.testing import CliRunner

from svoo.app.cli import app
from svoo.errors import ConfigError


def test_weights_are_fetched_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svoo.metrics.lpips.fetch_weights", lambda: Path("cache/lpips"))
    assert CliRunner().invoke(app, ["weights", "lpips"]).stdout == "cache/lpips written\n"
    paths = [Path("cache/net"), Path("cache/brisque")]
    monkeypatch.setattr("svoo.metrics.proxies.fetch_weights", lambda: paths)
    shown = CliRunner().invoke(app, ["weights", "scores"]).stdout
    assert shown == "cache/net written\ncache/brisque written\n"
    unknown = CliRunner().invoke(app, ["weights", "vgg"])
    assert isinstance(unknown.exception, ConfigError)
