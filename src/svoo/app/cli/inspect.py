"""`svoo inspect`: what a profile says, or how two of them differ."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from svoo.app.cli.shared import Json, Output, Quiet
from svoo.app.tables import comparison_tables, profile_data, profile_tables
from svoo.errors import ConfigError
from svoo.storage import check_writable

if TYPE_CHECKING:
    from svoo.profiles.profile import Profile


def run(
    profile: Annotated[Path, typer.Argument(help="A profile, or a .csv table of the authors.")],
    other: Annotated[
        Path | None, typer.Argument(help="Another profile, to compare it with.")
    ] = None,
    *,
    mass: Annotated[float, typer.Option(help="Which of the measured masses to show.")] = 0.95,
    skip: Annotated[
        float, typer.Option(help="Leave out the first steps: this fraction of all.")
    ] = 0.0,
    model: Annotated[
        str | None, typer.Option(help="The model of a .csv table, which does not name it.")
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

    if model is not None and ".csv" not in (profile.suffix, other.suffix if other else None):
        raise ConfigError(f"{profile} says its model itself: leave --model out, it is for a .csv")
    for path, ending in ((html, ".html"), (png, ".png")):
        if path is not None:
            if path.suffix.lower() != ending:
                raise ConfigError(f"--{ending[1:]} must end in {ending}, got {path}")
            check_writable(path)
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
