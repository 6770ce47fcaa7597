"""The `svoo` command: one file per command, each of which parses, calls and prints."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from svoo.app.cli import (
    bench,
    compare,
    demo,
    doctor,
    generate,
    inspect,
    methods,
    models,
    profile,
    show,
    weights,
)
from svoo.errors import SVOOError

app = typer.Typer(
    help="Training-free sparse attention for video diffusion.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command in (
    generate,
    profile,
    inspect,
    compare,
    show,
    demo,
    doctor,
    bench,
    methods,
    models,
    weights,
):
    app.command(command.__name__.rpartition(".")[2])(command.run)


def main() -> None:
    """Run the command; what the library refuses becomes one clear message and exit code 2."""
    try:
        app()
    except SVOOError as error:
        message = f"[bold red]error:[/] {escape(str(error))}"
        Console(stderr=True).print(message, highlight=False, soft_wrap=True)
        sys.exit(2)


def _show_version(value: bool) -> None:  # noqa: FBT001 (typer calls it so)
    if value:
        typer.echo(f"svoo {metadata.version('svoo')}")
        raise typer.Exit


@app.callback()
def _commands(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and stop."
        ),
    ] = False,
) -> None:
    """Training-free sparse attention for video diffusion."""
