"""`svoo inspect`: what a profile says, or how two of them differ."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from svoo.app.cli.shared import Json, Output, Quiet
from svoo.app.tables import comparison_tables, profile_data, profile_tables
from svoo.errors import ConfigError

if TYPE_CHECKING:
    from svoo.profiles.profile import Profile


def run(
    profile: Annotated[Path, typer.Argument(help="A profile.")],
    other: Annotated[Path | None, typer.Argument(help="Another, to compare it with.")] = None,
    *,
    mass: Annotated[float, typer.Option(help="One of the measured masses.")] = 0.95,
    skip: Annotated[float, typer.Option(help="Leave out this part of the steps.")] = 0.0,
    model: Annotated[
        str | None, typer.Option(help="Of a table of the authors (.csv), which does not say it.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the pictures.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what a profile says, or how two of them differ.

    Examples:

    [bold]svoo inspect mini.safetensors --html mini.html[/]

    [bold]svoo inspect one.safetensors another.safetensors[/]

    [bold]svoo inspect sparsity_wan_1.3B_t2v.csv --model wan2.1-t2v-1.3b --skip 0.2[/]
    """
    from svoo.app.inspection import compare, leave_out, write_page, write_picture

    output, loaded = Output(json=as_json, quiet=quiet), leave_out(_load(profile, model), skip)
    if other is not None:
        if html is not None or png is not None:
            raise ConfigError("--html and --png show one profile, not the comparison of two")
        second = _load(other, model)
        output.show(*comparison_tables(loaded, second, mass))
        output.data(asdict(compare(loaded, second, mass)))
        return
    output.show(*profile_tables(loaded, mass))
    for path, write in ((html, write_page), (png, write_picture)):
        if path is not None:
            write(loaded, path, mass)
            output.say(f"{path} written")
    output.data(profile_data(loaded, mass))


def _load(path: Path, model: str | None) -> Profile:
    """Load a profile, or a table of the authors."""
    from svoo.profiles.profile import Profile

    if path.suffix != ".csv":
        return Profile.load(path)
    if model is None:
        raise ConfigError(f"{path} does not say its model: give --model, such as wan2.1-t2v-1.3b")
    return Profile.from_official_csv(path, model)
