"""`svoo bench`: dense against sparse attention on this machine."""

from __future__ import annotations

from typing import Annotated

import typer


def run(
    *,
    tokens: Annotated[
        list[int] | None, typer.Option(help="Tokens of a call; give it several times.")
    ] = None,
) -> None:
    """Check and time attention on this machine, and print a block to paste into an issue.

    On a GPU 8,192 to 75,600 tokens of ten heads; on a processor small ones.

    Examples:

    [bold]svoo bench[/]

    [bold]svoo bench --tokens 2048[/]
    """
    import torch

    from svoo.app.bench import as_text, measure

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = measure(device, tokens=tokens)
    typer.echo(as_text(rows, device))
    if not all(row.correct for row in rows):
        raise typer.Exit(1)
