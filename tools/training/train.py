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
    steps: Steps = 14_000,
    resume: Resume = False,
    threads: Threads = 1,
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help="Multiply in bfloat16; weights stay float32.")
    ] = False,
    weights: Weights = WEIGHTS,
    cache: Annotated[
        Path | None, typer.Option(help="Where codes of clips are cached; None: svoo's cache.")
    ] = None,
) -> None:
    """Train the text encoder and the transformer on the exported autoencoder's codes."""
    from tools.training.train_dit import train_dit

    _check_resume(out, resume=resume)
    torch.set_num_threads(threads)
    train_dit(
        out,
        weights,
        cache or cache_folder() / "codes",
        steps,
        resume=resume,
        bfloat16=bfloat16,
    )


@app.command()
def export(*, out: Out = Path("training"), weights: Weights = WEIGHTS) -> None:
    """Write what is trained so far into the package: the autoencoder, then the whole pipeline."""
    exports = {"vae.safetensors": export_vae, "resume.safetensors": export_pipeline}
    found = [name for name in exports if (out / name).exists()]
    if not found:
        raise typer.BadParameter(f"{out} holds neither of {', '.join(exports)}: nothing to export")
    for name in found:
        exports[name](out / name, weights)


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
