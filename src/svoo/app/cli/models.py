"""`svoo models`: the catalogue."""

from __future__ import annotations

from dataclasses import asdict

from svoo.app.cli.shared import Json, Output
from svoo.app.tables import model_lines
from svoo.catalogue import SEAM_TESTED, models


def run(*, as_json: Json = False) -> None:
    """List the models that have presets, and how each was tested.

    Examples:

    [bold]svoo models[/]

    [bold]svoo models --json[/]
    """
    output = Output(json=as_json)
    output.say(*model_lines())
    output.data({"models": [asdict(model) for model in models()], "others": SEAM_TESTED})
