"""`svoo generate`: videos of one prompt, or of every line of a file."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from svoo.app.cli.shared import (
    Json,
    Output,
    Quiet,
    VideoOptions,
    runs_on_cpu,
    with_video_options,
)
from svoo.errors import ConfigError

if TYPE_CHECKING:
    from svoo.plugin.request import Request

_VIDEO, _FOLDER = Path("out/video.mp4"), Path("out/videos")
_LONGEST = 60  # letters of a prompt in a file's name


@with_video_options
def run(
    *,
    prompt: Annotated[str | None, typer.Option(help="What to show.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="A file with one prompt per line; videos that are done are skipped."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The video: mp4, gif, webm, npy, or a folder of PNG pictures (no ending); a JSON "
            f"goes beside it. With --prompts a folder. Default: {_VIDEO}, {_FOLDER}."
        ),
    ] = None,
    image: Annotated[Path | None, typer.Option(help="First frame, for image-to-video.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="svoo, paper (the paper's settings), release (the authors' scripts'), dense, "
            "or another name of svoo.available_methods()."
        ),
    ] = None,
    quality: Annotated[
        str | None, typer.Option(help="fast, balanced or careful: the far field.")
    ] = None,
    mass: Annotated[float | None, typer.Option(help="Softmax mass to keep.")] = None,
    profile: Annotated[Path | None, typer.Option(help="A profile made by `svoo profile`.")] = None,
    fps: Annotated[float | None, typer.Option(help="Frames per second of the file.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    video: VideoOptions,
) -> None:
    """Generate a video, sparse or dense.

    Examples:

    [bold]svoo generate --prompt "a red circle moves left over a checkered floor"[/]

    [bold]svoo generate --model wan2.1-t2v-1.3b --prompt "a cat" --method paper --out cat.mp4[/]

    [bold]svoo generate --model wan2.1-i2v-14b --image cat.png --prompt "it jumps" --fps 16[/]

    [bold]svoo generate --prompts prompts.txt --out out/videos[/]
    """
    from svoo.plugin.request import Request

    settings = {
        **vars(video),
        "image": image,
        "method": method,
        "quality": quality,
        "mass": mass,
        "profile": profile,
        "fps": fps,
    }
    output = Output(json=as_json, quiet=quiet)
    if (prompt is None) == (prompts is None):
        raise ConfigError("give --prompt TEXT or --prompts FILE, one of them")
    if prompts is None:
        requests = [Request(prompt=prompt or "", out=out or _VIDEO, **settings)]
        skipped: list[Request] = []
    else:
        requests, skipped = _from_file(prompts, out or _FOLDER, settings)
    for request in skipped:
        output.say(f"{request.out} is there already")
    records = _generate(output, requests)
    output.data([*map(_read_record, skipped), *records] if prompts is not None else records[0])


def _generate(output: Output, requests: list[Request]) -> list[dict[str, Any]]:
    from svoo.plugin.run import generate_each

    if not requests:
        return []
    records: list[dict[str, Any]] = []
    with output.progress() as bar:
        task = bar.add_task("loading", total=None)
        if runs_on_cpu(requests[0].device):
            output.prepare_kernels(bar, task)

        def on_step(done: int, total: int) -> None:
            number = f"{len(records) + 1} of {len(requests)}: " if len(requests) > 1 else ""
            bar.update(task, description=f"{number}denoising", completed=done, total=total)

        for request, record in zip(requests, generate_each(requests, on_step), strict=True):
            records.append(record)
            summary = record.pop("summary")
            if len(requests) == 1:
                output.say(summary)
            _say_done(output, request, record)
    return records


def _say_done(output: Output, request: Request, record: dict[str, Any]) -> None:
    seconds = record["seconds"]
    density = record["density"]
    output.say(
        f"{request.out} written: density {'1 (dense)' if density is None else f'{density:.3f}'}, "
        f"loading {seconds['loading']:.1f} s, denoising {seconds['denoising']:.1f} s, in all "
        f"{seconds['total']:.1f} s"
    )


def _from_file(
    prompts: Path, folder: Path, settings: dict[str, Any]
) -> tuple[list[Request], list[Request]]:
    """Return what is to be made of a file of prompts, and what is there already."""
    from svoo.plugin.calibrate import read_prompts
    from svoo.plugin.request import Request
    from svoo.plugin.run import record_path

    if folder.suffix or folder.is_file():
        raise ConfigError(f"--prompts makes many videos: --out must be a folder, got {folder}")
    wanted = [
        Request(prompt=text, out=folder, **settings)
        for text in dict.fromkeys(read_prompts(prompts))
    ]
    named = [replace(request, out=folder / video_name(request)) for request in wanted]
    done = [request for request in named if record_path(request.out).exists()]  # written last
    return [request for request in named if request not in done], done


def video_name(request: Request) -> str:
    """Return a file name from the prompt and, in a few letters, all settings."""
    settings = {name: str(value) for name, value in asdict(request).items() if name != "out"}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    words = re.sub(r"\W+", "-", request.prompt.lower(), flags=re.ASCII).strip("-")
    return f"{words[:_LONGEST].rstrip('-') or 'video'}-{digest}.mp4"


def _read_record(request: Request) -> dict[str, Any]:
    from svoo.plugin.run import record_path

    path = record_path(request.out)
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}; remove it to make it anew") from error
    return found
