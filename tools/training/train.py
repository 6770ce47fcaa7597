"""Training of the embedded model from nothing: `vae`, then `dit`, each followed by `export`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from svoo.mini.pipeline import WEIGHTS
from svoo.storage import cache_folder
from tools.training.export import export_pipeline, export_vae

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)

Out = Annotated[Path, typer.Option(help="Where checkpoints, logs and pictures go.")]
Steps = Annotated[int, typer.Option(help="Steps in all, those of earlier runs included.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out.")]
Threads = Annotated[int, typer.Option(help="CPU threads.")]
Weights = Annotated[Path, typer.Option(help="Folder of the exported weights.")]


def _check_resume(out: Path, *, resume: bool, name: str = "resume.safetensors") -> None:
    if resume and not (out / name).exists():
        raise typer.BadParameter(f"there is no {out / name} to go on from; leave out --resume")


@app.command()
def vae(
    *,
    out: Out = Path("training"),
    steps: Steps = 2800,
    resume: Resume = False,
    threads: Threads = 1,
) -> None:
    """Train the autoencoder."""
    from tools.training.train_vae import train_vae

    _check_resume(out, resume=resume, name="vae.safetensors")
    torch.set_num_threads(threads)
    train_vae(out, steps, resume=resume)


@app.command()
def dit(
    *,
    out: Out = Path("training"),
    resume: Resume = False,
    threads: Threads = 1,
    bfloat16: Annotated[
        bool | None,
        typer.Option(help="Multiply in bfloat16; weights stay float32. Unsaid: if faster here."),
    ] = None,
    weights: Weights = WEIGHTS,
    cache: Annotated[
        Path | None, typer.Option(help="Where codes of clips are cached; None: svoo's cache.")
    ] = None,
) -> None:
    """Train the text encoder and the transformer on the exported autoencoder's codes, stage by
    stage; ends with a message where a gate is closed."""
    from tools.training.start import bfloat16_is_faster
    from tools.training.train_dit import GateClosed, train_dit

    _check_resume(out, resume=resume)
    torch.set_num_threads(threads)
    chosen = bfloat16_is_faster() if bfloat16 is None else bfloat16
    typer.echo(f"products in {'bfloat16' if chosen else 'float32'}")
    try:
        train_dit(out, weights, cache or cache_folder() / "codes", resume=resume, bfloat16=chosen)
    except GateClosed as closed:
        typer.echo(f"stopped: {closed}", err=True)
        raise typer.Exit(3) from closed


@app.command()
def export(
    *,
    out: Out = Path("training"),
    to: Annotated[Path, typer.Option(help="Folder that the weights go to.")] = Path("out/weights"),
    weights: Weights = WEIGHTS,
) -> None:
    """Write what is trained so far as a folder of weights: the autoencoder if `vae` trained one
    here, else that of `--weights`, and the pipeline if `dit` has been run."""
    trained, checkpoint = out / "vae.safetensors", out / "resume.safetensors"
    if not trained.exists() and not checkpoint.exists():
        raise typer.BadParameter(f"{out} has neither {trained.name} nor {checkpoint.name}")
    if trained.exists():
        export_vae(trained, to)
    if checkpoint.exists():
        export_pipeline(checkpoint, (to if trained.exists() else weights) / "vae", to)


@app.command()
def check(
    *,
    clips: Annotated[int, typer.Option(min=1, help="Held-out clips to reconstruct.")] = 8,
) -> None:
    """Say how long the shipped pipeline takes to load and how well its autoencoder reconstructs
    held-out clips."""
    from svoo.mini.pipeline import load
    from tools.training.train_vae import held_out_psnr

    start = time.perf_counter()
    pipe = load()
    typer.echo(f"loading: {time.perf_counter() - start:.1f} s")
    psnr = held_out_psnr(pipe.vae, clips)
    typer.echo(f"autoencoder: {psnr:.2f} dB, mean of {clips} held-out clips of the default size")


if __name__ == "__main__":
    app()
