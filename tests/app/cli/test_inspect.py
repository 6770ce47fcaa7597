import json
from pathlib import Path

import pytest
from making import made_profile
from typer.testing import CliRunner

from svoo.app.cli import app
from svoo.errors import ConfigError, FileError


@pytest.fixture
def saved(tmp_path: Path) -> str:
    made_profile().save(tmp_path / "p.safetensors")
    return str(tmp_path / "p.safetensors")


def test_inspect_shows_compares_and_draws(saved: str, tmp_path: Path) -> None:
    page, picture = tmp_path / "p.html", tmp_path / "p.png"
    pictures = ["--html", str(page), "--png", str(picture)]
    shown = CliRunner().invoke(app, ["inspect", saved, *pictures])
    assert shown.exit_code == 0, shown.output
    assert "tiny" in shown.output and "std: heads" in " ".join(shown.output.split())
    assert page.exists() and picture.exists()
    compared = CliRunner().invoke(app, ["inspect", saved, saved])
    assert "correlation 1.000, of ranks 1.000" in " ".join(compared.output.split())
    both = CliRunner().invoke(app, ["inspect", saved, saved, "--png", str(picture)])
    assert isinstance(both.exception, ConfigError)


def test_a_picture_never_replaces_a_profile(saved: str, tmp_path: Path) -> None:
    before = Path(saved).read_bytes()
    for option, path in (("--html", saved), ("--png", saved), ("--png", str(tmp_path / "p.jpg"))):
        refused = CliRunner().invoke(app, ["inspect", saved, option, path])
        assert isinstance(refused.exception, ConfigError) and not refused.stdout
        assert f"{option} must end in .{option[2:]}, got {path}" in str(refused.exception)
    assert Path(saved).read_bytes() == before
    (tmp_path / "folder.html").mkdir()
    nowhere = CliRunner().invoke(app, ["inspect", saved, "--html", str(tmp_path / "folder.html")])
    assert isinstance(nowhere.exception, FileError) and not nowhere.stdout


def test_a_profile_says_its_model_itself(saved: str) -> None:
    other = CliRunner().invoke(app, ["inspect", saved, "--model", "wan2.1-t2v-1.3b"])
    assert isinstance(other.exception, ConfigError)
    assert "says its model itself: leave --model out" in str(other.exception)


def test_inspect_for_programs(saved: str) -> None:
    found = json.loads(CliRunner().invoke(app, ["inspect", saved, "--json"]).stdout)
    assert found["mass"] == 0.95 and len(found["layers"]) == made_profile().layers
    both = json.loads(CliRunner().invoke(app, ["inspect", saved, saved, "--json"]).stdout)
    assert both["mean_distance"] == 0


def test_inspect_shows_a_table_of_the_authors(official_profiles: Path) -> None:
    table = str(official_profiles / "sparsity_wan_1.3B_t2v.csv")
    unnamed = CliRunner().invoke(app, ["inspect", table])
    assert isinstance(unnamed.exception, ConfigError)
    assert "does not say its model: give --model" in str(unnamed.exception)
    command = ["inspect", table, "--model", "wan2.1-t2v-1.3b", "--skip"]
    shown = CliRunner().invoke(app, [*command, "0.2"])
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.output.split())
    assert "mean 0.127; standard deviation over inputs 0.000, steps 0.019, heads 0.154" in text
    assert "standard error unknown" in text
    assert isinstance(CliRunner().invoke(app, [*command, "1"]).exception, ConfigError)
