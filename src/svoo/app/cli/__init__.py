"""The `svoo` command: one file per command, each of which parses, calls and prints."""

from __future__ import annotations

import sys
import time
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
    estimate,
    generate,
    inspect,
    methods,
    models,
    profile,
    show,
    study,
    ui,
    weights,
)
from svoo.app.cli.shared import Command
from svoo.errors import ConfigError, RankError, SVOOError
from svoo.plugin.ranks import find_ranks

_LET_THE_FIRST_SPEAK = 20.0  # seconds

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
    study,
    ui,
    demo,
    doctor,
    estimate,
    bench,
    methods,
    models,
    weights,
):
    app.command(command.__name__.rpartition(".")[2], cls=Command)(command.run)


def main() -> None:
    """Run the command; what the library refuses becomes one clear message and exit code 2."""
    try:
        app()
    except SVOOError as error:
        message = f"[bold red]error:[/] {escape(str(error))}"
        if not find_ranks().first:  # what all refuse the first one says, and torchrun ends them
            time.sleep(_LET_THE_FIRST_SPEAK)
        Console(stderr=True).print(message, highlight=False, soft_wrap=True)
        sys.exit(1 if isinstance(error, RankError) else 2)


def _show_version(value: bool) -> None:  # noqa: FBT001 (typer calls it so)
    if value:
        typer.echo(f"svoo {metadata.version('svoo')}")
        raise typer.Exit


@app.callback()
def _commands(
    context: typer.Context,
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and stop."
        ),
    ] = False,
) -> None:
    """Training-free sparse attention for video diffusion."""
    command = context.invoked_subcommand
    if command != "generate" and find_ranks().count > 1:
        raise ConfigError(f"torchrun is for `svoo generate`: run `svoo {command}` without it")
