"""`svoo compare`: how alike two videos are."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from svoo.app.cli.shared import Json, Output, Quiet


def run(
    first: Annotated[Path, typer.Argument(help="A video.")],
    second: Annotated[Path, typer.Argument(help="Another of the same size and length.")],
    *,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say how alike two videos are: PSNR, SSIM, LPIPS.

    mp4 loses a little when it is written, and that counts as a difference; npy loses nothing.
    LPIPS needs `svoo weights lpips` once.

    Examples:

    [bold]svoo compare dense.mp4 sparse.mp4[/]

    [bold]svoo compare dense.npy sparse.npy --json[/]
    """
    from svoo.metrics.compare import compare_videos
    from svoo.metrics.video import read_video

    output = Output(json=as_json, quiet=quiet)
    with output.notes():
        found = compare_videos(read_video(first), read_video(second))
    output.say(f"PSNR {found.psnr:.2f} dB, SSIM {found.ssim:.4f}")
    if found.lpips is None:
        output.say(f"LPIPS unavailable: {found.why_no_lpips}")
    else:
        output.say(f"LPIPS {found.lpips:.4f}")
    equal = math.isinf(found.psnr)  # JSON has no infinity
    output.data({**asdict(found), "psnr": None if equal else found.psnr, "equal": equal})
