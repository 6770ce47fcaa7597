"""`svoo demo`: one video dense, in the paper's mode and in ours, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from svoo.app.cli.shared import Frames, Height, Json, Output, Quiet, Seed, Steps, Width
from svoo.app.tables import demo_table
from svoo.storage import check_writable


def run(
    *,
    out: Annotated[Path, typer.Option(help="Folder of the page and the videos.")] = Path(
        "out/demo"
    ),
    prompt: Annotated[
        str, typer.Option(help="What to show, in words that the embedded model knows.")
    ] = "a red circle moves left over a checkered floor",
    seed: Seed = 0,
    steps: Steps = None,
    frames: Frames = None,
    height: Height = None,
    width: Width = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Generate one video dense, in the paper's mode and in ours, and show them side by side.

    It takes some three minutes on two cores; fewer steps or frames are faster.

    Examples:

    [bold]svoo demo --prompt "a yellow star spins in front of a brick wall"[/]

    [bold]svoo demo --frames 17 --steps 10 --out out/small[/]
    """
    from svoo.app.demo import figures, run_modes, write_results
    from svoo.plugin.request import Request

    Request(prompt=prompt, out=out, seed=seed)  # refuses bad ones
    check_writable(out / "index.html")
    asked = {"num_inference_steps": steps, "num_frames": frames, "height": height, "width": width}
    sizes = {name: value for name, value in asked.items() if value is not None}
    output = Output(json=as_json, quiet=quiet)
    with output.progress() as bar:
        task = bar.add_task("loading", total=None)
        output.prepare_kernels(bar, task)

        def on_step(mode: str, done: int, total: int) -> None:
            bar.update(task, description=mode, completed=done, total=total)

        trials = run_modes(prompt, seed=seed, on_step=on_step, **sizes)
        bar.update(task, description="writing")
        page = write_results(trials, prompt, out, seed=seed, **sizes)
    rows = [figures(trial, trials[0]) for trial in trials]
    output.show(demo_table(prompt, rows))
    if rows[-1]["why_no_lpips"]:
        output.say(f"LPIPS unavailable: {rows[-1]['why_no_lpips']}")
    output.say(f"loop: the denoising steps; likeness is to dense. Open {page}")
    output.data(json.loads((out / "results.json").read_text()))
