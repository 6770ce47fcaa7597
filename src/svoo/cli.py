"""The `svoo` command: parse, call, print."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from svoo.errors import SVOOError

app = typer.Typer(
    help="Training-free sparse attention for video diffusion.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)


def main() -> None:
    """Run the command; what the library refuses becomes one clear message and exit code 2."""
    try:
        app()
    except SVOOError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", highlight=False)
        sys.exit(2)


@app.callback()
def _commands() -> None:
    """Training-free sparse attention for video diffusion."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where results go.")] = Path("out/demo"),
    tokens: Annotated[int, typer.Option(min=256, help="Video tokens.")] = 8192,
) -> None:
    """Run the method on synthetic clustered tokens and compare it with dense attention.

    Example: [bold]svoo demo --tokens 16384[/]
    """
    from svoo.demo import measure

    console = Console()
    with console.status(f"dense and sparse attention over {tokens:,} tokens"):
        start = time.perf_counter()
        rows = measure(tokens)
    table = Table(title=f"{tokens:,} tokens, 2 heads of 64, synthetic clusters, float32")
    for name in ("", "seconds", "speed-up", "density", "recall", "output error"):
        table.add_column(name, justify="left" if not name else "right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.seconds:.3f}",
            f"{rows[0].seconds / row.seconds:.2f}x",
            f"{row.density:.3f}",
            f"{row.recall:.3f}",
            f"{row.error:.4f}",
        )
    console.print(table)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "results.json"
    unfinished = path.with_suffix(".partial")
    unfinished.write_text(json.dumps([vars(row) for row in rows], indent=2) + "\n")
    unfinished.replace(path)
    console.print(f"{path} written, {time.perf_counter() - start:.0f} s in all")
