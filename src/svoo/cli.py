"""The `svoo` command: parse, call, print."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from svoo.catalogue import models
from svoo.errors import ConfigError, SVOOError

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
def generate(
    *,
    prompt: Annotated[str, typer.Option(help="What to show.")],
    out: Annotated[Path, typer.Option(help="The mp4 to write; a JSON goes beside it.")] = Path(
        "out/video.mp4"
    ),
    model: Annotated[str, typer.Option(help="Short name, hub id or path.")] = "mini",
    image: Annotated[Path | None, typer.Option(help="First frame, for image-to-video.")] = None,
    method: Annotated[str, typer.Option(help="svoo or dense.")] = "svoo",
    preset: Annotated[str, typer.Option(help="default, paper or release.")] = "default",
    mass: Annotated[float | None, typer.Option(help="Softmax mass to keep.")] = None,
    steps: Annotated[int | None, typer.Option(min=1)] = None,
    frames: Annotated[int | None, typer.Option()] = None,
    height: Annotated[int | None, typer.Option()] = None,
    width: Annotated[int | None, typer.Option()] = None,
    seed: Annotated[int, typer.Option()] = 0,
    guidance: Annotated[float | None, typer.Option()] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")] = None,
    offload: Annotated[
        bool, typer.Option("--offload", help="Keep idle parts in CPU memory.")
    ] = False,
    profile: Annotated[Path | None, typer.Option(help="A profile made by `svoo profile`.")] = None,
) -> None:
    """Generate a video, sparse or dense.

    Examples:

    [bold]svoo generate --prompt "a red circle moves left over a checkered floor"[/]

    [bold]svoo generate --model wan2.1-t2v-1.3b --prompt "a cat" --preset paper --out cat.mp4[/]
    """
    from svoo.plugin.generate import Request
    from svoo.plugin.generate import generate as run

    for name, value, choices in (
        ("method", method, ("svoo", "dense")),
        ("preset", preset, ("default", "paper", "release")),
        ("dtype", dtype, (None, "float32", "bfloat16", "float16")),
    ):
        if value not in choices:
            known = ", ".join(choice for choice in choices if choice)
            raise ConfigError(f"--{name} must be one of {known}, got {value!r}")
    request = Request(
        prompt=prompt,
        out=out,
        model=model,
        image=image,
        method=method,  # type: ignore[arg-type]  # checked above
        preset=preset,  # type: ignore[arg-type]
        mass=mass,
        steps=steps,
        frames=frames,
        height=height,
        width=width,
        seed=seed,
        guidance=guidance,
        dtype=dtype,
        device=device,
        offload=offload,
        profile=profile,
    )
    console = Console()
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("loading", total=None)

        def on_step(done: int, total: int) -> None:
            bar.update(task, description="denoising", completed=done, total=total)

        record = run(request, on_step)
    console.print(record["summary"], highlight=False)
    seconds = record["seconds"]
    console.print(
        f"{out} written: denoising {seconds['denoising']:.1f} s, in all {seconds['total']:.1f} s"
    )


@app.command()
def doctor() -> None:
    """Say what can run here, and why not where it cannot.

    Example: [bold]svoo doctor[/]
    """
    from svoo.doctor import examine

    table = Table("", "", "", title="svoo doctor", show_header=False)
    for finding in examine():
        table.add_row(
            "[green]yes[/]" if finding.good else "[yellow]no[/]", finding.name, finding.text
        )
    Console().print(table)


@app.command("models")
def list_models() -> None:
    """List the models that have presets, and how each was tested.

    Example: [bold]svoo models[/]
    """
    table = Table("name", "layers x heads", "steps", "tested with", "hub id")
    table.columns[0].no_wrap = True
    for model in models():
        how = "the embedded model" if model.name == "mini" else "tiny random weights"
        experts = " x 2 experts" if model.stages == 2 else ""
        size = f"{model.layers} x {model.heads}{experts}"
        table.add_row(model.name, size, str(model.steps), how, model.hub_id)
    Console().print(table)


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
