"""`svoo estimate`: what a video will take, before anything is loaded or rented."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from svoo.app.cli.shared import Frames, Height, Json, Output, Steps, Width
from svoo.catalogue import find_model
from svoo.errors import ConfigError

if TYPE_CHECKING:
    from svoo.app.estimate.roofline import Rates
    from svoo.catalogue import Model
    from svoo.methods.base import MethodConfig


def run(
    *,
    model: Annotated[str, typer.Option(help="A name of `svoo models`.")] = "wan2.1-t2v-14b",
    gpu: Annotated[
        str | None, typer.Option(help="The card: h200 (default), h100, a100, l40s, 4090 or 5090.")
    ] = None,
    gpus: Annotated[int, typer.Option(help="How many GPUs share one video (Ulysses).")] = 1,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    steps: Steps = None,
    method: Annotated[
        str, typer.Option(help="svoo, paper, release, or a name of `svoo methods`.")
    ] = "svoo",
    density: Annotated[
        float | None,
        typer.Option(help="Share of token pairs that sparse calls compute, if you know it."),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Time small calls on this machine and use their rates."),
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="The paper's seven models on 1 to 8 GPUs, as Markdown.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Model the denoising loop, dense and sparse: seconds by part, speed-up, peak memory.

    A model of two rates, for attention and for all other products. They were fitted to the paper's
    H200 latencies of two models; for all seven they err by at most 10 % (dense) and 15 % (SVOO).
    Nothing is measured here, unless you give --calibrate.

    Examples:

    [bold]svoo estimate --model wan2.1-t2v-14b --gpu h200 --height 720 --width 1280 --frames 81[/]

    [bold]svoo estimate --model hunyuanvideo-t2v --gpu h100 --gpus 8 --method paper --json[/]

    [bold]svoo estimate --model mini --calibrate[/]
    """
    from svoo.app.estimate.data import latency_card
    from svoo.app.estimate.estimate import Video, check_gpus, estimate
    from svoo.app.estimate.tables import against_paper, all_models, lines, markdown
    from svoo.methods import find_method

    output = Output(json=as_json)
    known = find_model(model)
    if calibrate and gpu is not None:
        raise ConfigError("--calibrate times this machine: leave --gpu out")
    check_gpus(known, gpus)
    if every:
        asked = (gpus != 1, height, width, frames, steps, method != "svoo", density is not None)
        if any(asked):
            raise ConfigError(
                "--all shows models in their own sizes by paper and default mode: leave out "
                "--gpus, --height, --width, --frames, --steps, --method and --density"
            )
        rates = _rates(output, known, gpu, find_method("dense"), calibrate=calibrate)
        output.say(markdown(rates))
        if not calibrate and gpu in (None, latency_card()):
            output.say("", against_paper(rates))
        output.data([row.as_dict() for row in all_models(rates)])
        return
    video = Video(
        known,
        frames or known.frames,
        height or known.height,
        width or known.width,
        steps or known.steps,
    )
    config = find_method(method, known.name)
    found = estimate(
        video,
        _rates(output, known, gpu, config, calibrate=calibrate),
        config,
        gpus=gpus,
        density=density,
        itemsize=4 if calibrate and not _on_gpu() else 2,
        name=method,
    )
    output.say(*lines(found))
    output.data(found.as_dict())


def _on_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _rates(
    output: Output, model: Model, gpu: str | None, config: MethodConfig, *, calibrate: bool
) -> Rates:
    from svoo.app.estimate.data import find_card
    from svoo.app.estimate.roofline import card_rates

    if not calibrate:
        return card_rates(find_card(gpu or "h200"))
    import torch

    from svoo.app.estimate.calibrate import measure_rates

    with output.progress() as bar:
        task = bar.add_task("timing small calls", total=None)
        if not _on_gpu():
            output.prepare_kernels(bar, task)
        return measure_rates(model, torch.device("cuda" if _on_gpu() else "cpu"), config)
