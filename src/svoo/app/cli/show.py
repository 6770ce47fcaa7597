"""`svoo show`: what a method keeps of one head's attention, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
from svoo.storage import check_writable


@with_video_options
def run(
    *,
    method: Annotated[str, typer.Option(help="A name of `svoo methods`.")] = "svoo",
    layer: Annotated[int, typer.Option(min=0, help="Layer, counted from 0.")] = 2,
    head: Annotated[int, typer.Option(min=0, help="Head, counted from 0.")] = 0,
    step: Annotated[
        int | None, typer.Option(min=0, help="Step, counted from 0. Default: half of the run.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The picture (PNG).")] = Path("out/show.png"),
    prompt: Annotated[
        str, typer.Option(help="What the video shows.")
    ] = "a red circle moves left over a checkered floor",
    as_json: Json = False,
    quiet: Quiet = False,
    video: VideoOptions,
) -> None:
    """Draw which blocks a method keeps, over the attention map of one head.

    The method runs as it always does, up to that step of the first guidance branch.

    Examples:

    [bold]svoo show --method radial --layer 2 --head 1 --out radial.png[/]

    [bold]svoo show --method svg2 --step 12[/]
    """
    from svoo.app.gallery import Sight, draw_maps, see, watch_one, write_picture
    from svoo.plugin.apply import apply
    from svoo.plugin.load import check_takes, open_pipeline
    from svoo.plugin.request import Request, call_sizes, choose_method, known_model
    from svoo.plugin.run import LoopTimer, call_arguments, call_pipeline

    request = Request(prompt=prompt, out=out, method=method, **vars(video))
    if out.suffix.lower() != ".png":
        raise ConfigError(f"--out must end in .png, got {out}")
    check_writable(out)
    model = known_model(request.model)
    steps = call_sizes(request, model).get("num_inference_steps", 50)
    where = (steps // 2 if step is None else step), layer, head
    config = choose_method(request, model)
    assert config is not None  # a name was given
    if config.name == "dense":
        raise ConfigError("--method dense keeps everything: choose another of `svoo methods`")
    output = Output(json=as_json, quiet=quiet)
    with output.progress() as bar:
        task = bar.add_task("loading", total=None)
        if runs_on_cpu(video.device):
            output.prepare_kernels(bar, task)
        pipe = open_pipeline(request, model)
        check_takes(request, pipe, image=False)

        def on_step(done: int, _total: int) -> None:
            bar.update(task, description="denoising", completed=done, total=where[0])

        found: list[Sight] = []
        clock = LoopTimer(on_step).as_argument(pipe)
        with apply(pipe, watch_one(config, where, found)):
            sight = see(
                lambda: call_pipeline(pipe, **call_arguments(request, model), **clock),
                found,
                where,
            )
        picture = draw_maps(sight)
        title = f"{method}: layer {layer}, head {head}, step {where[0]} of {steps}"
        write_picture(picture, out, title)
    output.say(
        f"{out} written: step {where[0]}, kept {picture.density:.1%} of the pairs and "
        f"{picture.recall:.1%} of the attention"
    )
    output.data(
        {
            "out": str(out),
            "method": method,
            "step": where[0],
            "layer": layer,
            "head": head,
            "density": picture.density,
            "recall": picture.recall,
        }
    )
