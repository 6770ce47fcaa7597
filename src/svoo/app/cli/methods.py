"""`svoo methods`: all methods, and their settings for a model."""

from __future__ import annotations

from typing import Annotated

import typer

from svoo.app.cli.shared import Json, Output
from svoo.app.tables import method_lines
from svoo.catalogue import find_model
from svoo.methods import available_methods


def run(
    *,
    model: Annotated[
        str, typer.Option(help="Whose settings to show: a name of `svoo models`.")
    ] = "mini",
    as_json: Json = False,
) -> None:
    """List the methods: what each keeps, what becomes of the rest, and its settings for a model.

    Examples:

    [bold]svoo methods[/]

    [bold]svoo methods --model wan2.2-t2v-a14b --json[/]
    """
    name = find_model(model).name
    output = Output(json=as_json)
    output.say(*method_lines(name))
    output.data(
        [
            {
                "name": row.name,
                "paper": row.paper,
                "keeps": row.keeps,
                "rest": row.rest,
                "trained": row.trained,
                "knob": None if row.knob is None else row.knob.setting,
                "model": name,
                "settings": row.config.for_model(name).as_dict(),
            }
            for row in available_methods()
        ]
    )
