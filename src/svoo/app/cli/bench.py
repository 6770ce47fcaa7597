"""`svoo bench`: dense against sparse attention on this machine."""

from __future__ import annotations

from typing import Annotated

import typer


def run(
    *,
    tokens: Annotated[
        list[int] | None,
        typer.Option(min=16, help="Tokens of a call; give it several times for several sizes."),
    ] = None,
) -> None:
    """Check every kernel, time attention here, and print a block to paste into an issue.

    Times dense attention, paper mode and default mode: on a GPU ten heads of 8,192 to 75,600
    tokens, on a CPU much smaller calls.

    Examples:

    [bold]svoo bench[/]

    [bold]svoo bench --tokens 2048[/]
    """
    import torch
    from rich.console import Console

    from svoo.app.bench import TOKENS, as_text, measure

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = tokens or TOKENS[device.type]
    rows = []
    with Console(stderr=True).status("checking and timing") as status:
        for row in measure(device, tokens=sizes):
            rows.append(row)
            status.update(f"checking and timing: {len(rows)} of {2 * len(sizes)} done")
    typer.echo(as_text(rows, device))
    if any(row.wrong for row in rows):
        raise typer.Exit(1)
