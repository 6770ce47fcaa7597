"""`svoo profile`: measure what every head of a model needs."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Literal

import typer

from svoo.app.cli.shared import (
    Json,
    Output,
    Quiet,
    Ray,
    VideoOptions,
    Workers,
    as_numbers,
    with_video_options,
)
from svoo.app.tables import profile_data, profile_tables
from svoo.errors import ConfigError


@with_video_options
def run(
    *,
    prompts: Annotated[
        Path | None,
        typer.Option(help="A file with one prompt per line. The embedded model has its own."),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder of first frames, in the order of their names.")
    ] = None,
    inputs: Annotated[
        int | None, typer.Option(help="Use only the first this many prompts.")
    ] = None,
    rows: Annotated[
        str,
        typer.Option(
            help="Query rows to sample of each head: a number, all, or auto (640, or all of a "
            "smaller video)."
        ),
    ] = "auto",
    masses: Annotated[
        str,
        typer.Option(help="Softmax masses to measure, separated by commas; 0.95 must be there."),
    ] = "0.5,0.6,0.7,0.8,0.9,0.95",
    every: Annotated[
        int, typer.Option(help="Measure every N-th step; those between are interpolated.")
    ] = 3,
    branch: Annotated[
        str, typer.Option(help="Guidance branches to measure: cond or both.")
    ] = "cond",
    exact: Annotated[
        bool, typer.Option("--exact", help="Sort logits instead of counting them in bins: slower.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The profile to write.")] = Path(
        "out/profile.safetensors"
    ),
    restart: Annotated[
        bool,
        typer.Option(
            "--restart", help="Begin anew where --out holds another, unfinished or damaged run."
        ),
    ] = False,
    method: Annotated[
        str,
        typer.Option(
            help="svoo: what every head needs. sta: the best window of Sliding Tile Attention for "
            "every step, layer and head, written when all inputs are done."
        ),
    ] = "svoo",
    ray: Ray = None,
    workers: Workers = None,
    as_json: Json = False,
    quiet: Quiet = False,
    video: VideoOptions,
) -> None:
    """Measure once what every head needs, for `svoo generate --method paper` and `--mass`.

    `svoo generate --method paper --profile FILE` then uses it for any prompt. Default mode needs
    no profile. What is done is on disk after every input: stop it, and the same command goes on.

    Examples:

    [bold]svoo profile --out mini.safetensors[/]

    [bold]svoo profile --model wan2.1-t2v-1.3b --prompts prompts.txt --every 5[/]

    [bold]svoo profile --model wan2.1-t2v-14b --prompts prompts.txt --ray head:6379[/]

    [bold]svoo profile --method sta --out windows.safetensors[/]

    Then: [bold]svoo generate --method sta --profile windows.safetensors --prompt "..."[/]
    """
    from svoo.fleet.cluster import open_cluster
    from svoo.fleet.profiles import record_by_name
    from svoo.plugin.calibrate import MINI_PROMPTS, read_inputs
    from svoo.plugin.record import RecordConfig
    from svoo.plugin.request import Request
    from svoo.plugin.windows import record_windows

    if prompts is None and video.model != "mini":
        raise ConfigError("give --prompts FILE, one prompt per line")
    if method not in ("svoo", "sta"):
        raise ConfigError(
            f"--method must be svoo or sta, which have something to measure: {method!r}"
        )
    if method == "sta":
        own = inspect.signature(run).parameters
        given = {"rows": rows, "masses": masses, "every": every, "branch": branch}
        given |= {"exact": exact, "restart": restart, "ray": ray, "workers": workers}
        other = [name for name, value in given.items() if value != own[name].default]
        if other:
            options = ", ".join(f"--{name}" for name in other)
            raise ConfigError(f"{options}: for profiles of svoo; --method sta takes none of them")
    measuring = RecordConfig(
        masses=as_numbers("masses", masses),
        rows=_row_count(rows),
        every=every,
        branch=branch,  # type: ignore[arg-type]  # RecordConfig checks it
        exact=exact,
        seed=video.seed,
    )
    request = Request(prompt="", out=out, **vars(video))
    entries = read_inputs(prompts or MINI_PROMPTS, images, inputs)
    output = Output(json=as_json, quiet=quiet)
    with output.progress() as bar:
        task = bar.add_task("loading", total=None)

        def on_progress(done: float) -> None:
            text = f"{int(done)} of {len(entries)} inputs"
            bar.update(task, description=text, completed=done, total=len(entries))

        if method == "sta":
            table = record_windows(request, entries, on_progress)
            steps, layers, heads, _ = table.windows.shape
            output.say(f"{out} written: windows of {steps} steps, {layers} layers, {heads} heads")
            output.data({"out": str(out), "windows": table.windows.tolist()})
            return
        with open_cluster(ray, workers=workers, use_gpus=video.device != "cpu") as cluster:
            recording = record_by_name(
                request, entries, measuring, cluster, restart=restart, on_progress=on_progress
            )
    found = recording.profile
    if found is None:
        lines = (f"  {entries[bad.job]['prompt']}: {bad.error}" for bad in recording.failed)
        count = len(recording.failed)
        output.complain(
            f"{count} of {len(entries)} inputs failed; the same command tries them again:", *lines
        )
        raise typer.Exit(1)
    output.show(*profile_tables(found))
    output.say(f"{out} written; look at it with `svoo inspect {out}`")
    output.data({"out": str(out), **profile_data(found)})


def _row_count(text: str) -> int | Literal["auto"] | None:
    if text == "auto":
        return "auto"
    if text == "all":
        return None
    if not text.isdecimal():
        raise ConfigError(f"--rows must be a whole number or all, got {text!r}")
    return int(text)
