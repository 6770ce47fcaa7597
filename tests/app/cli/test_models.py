import json

from typer.testing import CliRunner

from svoo.app.cli import app
from svoo.catalogue import models


def test_models_are_listed_and_nothing_is_cut() -> None:
    listed = CliRunner().invoke(app, ["models"], env={"COLUMNS": "40"})
    assert listed.exit_code == 0
    lines = listed.output.splitlines()
    for model in models():
        assert any(model.name in line and model.hub_id in line for line in lines)
    assert "MochiPipeline" in listed.output
    assert max(map(len, lines)) <= 80
    found = json.loads(CliRunner().invoke(app, ["models", "--json"]).stdout)
    assert [row["name"] for row in found["models"]] == [model.name for model in models()]
