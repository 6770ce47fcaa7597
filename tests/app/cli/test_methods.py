import json

from typer.testing import CliRunner

from svoo import available_methods
from svoo.app.cli import app
from svoo.errors import ModelError


def test_methods_are_listed_with_their_settings() -> None:
    command = ["methods", "--model", "wan2.2-t2v-a14b"]
    listed = CliRunner().invoke(app, command)
    assert listed.exit_code == 0
    lines = listed.output.splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(listed.output.split())
    for row in available_methods():
        assert row.name in lines and row.keeps in words and row.rest in words
    assert "dense_steps=0.275" in words and "Its authors train the model with it" in words
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert [row["name"] for row in found] == [row.name for row in available_methods()]
    radial = next(row for row in found if row["name"] == "radial")
    assert radial["settings"]["block"] == 64 and radial["model"] == "wan2.2-t2v-a14b"
    assert radial["knob"] == "decay"
    assert isinstance(CliRunner().invoke(app, ["methods", "--model", "x"]).exception, ModelError)
