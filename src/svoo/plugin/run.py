"""Generation by name: run a pipeline that was asked for, write the video whole or not at all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from svoo.catalogue import Model
from svoo.errors import ConfigError, SVOOError
from svoo.methods.base import MethodConfig
from svoo.metrics.video import FPS, check_video_path, write_video
from svoo.plugin.apply import apply
from svoo.plugin.load import check_takes, open_pipeline, read_image, takes
from svoo.plugin.machine import describe_machine
from svoo.plugin.request import (
    Request,
    call_sizes,
    choose_method,
    count_tokens,
    known_model,
    video_shape,
)
from svoo.profiles.profile import Profile
from svoo.session.stats import RunStats
from svoo.session.summary import summarise
from svoo.storage import write_atomically

OnStep = Callable[[int, int], None]


def generate(request: Request, on_step: OnStep | None = None) -> dict[str, Any]:
    """Generate one video; see `generate_each`."""
    return next(generate_each([request], on_step))


def generate_each(
    requests: Sequence[Request], on_step: OnStep | None = None
) -> Iterator[dict[str, Any]]:
    """Generate videos with one pipeline: write each and the JSON beside it, yield what that says.

    The requests differ in prompt and output only. `on_step(done, steps)` is told of progress.
    Whatever happens, the pipeline is restored and no half file is left. The first video's times
    include loading.
    """
    first = requests[0]
    model = known_model(first.model)
    method = choose_method(first, model)
    for request in requests:
        check_video_path(request.out, video_shape(request, model))
    profile = "auto" if first.profile is None else Profile.load(first.profile)
    image = {} if first.image is None else {"image": read_image(first.image)}
    start = time.perf_counter()
    pipe = open_pipeline(first, model)
    check_takes(first, pipe, image=bool(image))
    loading = time.perf_counter() - start
    for request in requests:
        arguments = call_arguments(request, model) | image
        clock = LoopTimer(on_step)
        begin = time.perf_counter()
        with apply(pipe, method, profile) as handle:
            frames = call_pipeline(pipe, **arguments, **clock.as_argument(pipe)).frames[0]
            stats = handle.stats()
        total = loading + time.perf_counter() - begin
        seconds = {"loading": loading, "denoising": clock.seconds, "total": total}
        write_video(frames, request.out, request.fps or FPS)
        yield _write_record(request, model, method, stats, seconds)
        loading = 0.0


def _write_record(
    request: Request,
    model: Model | None,
    method: MethodConfig | None,
    stats: RunStats,
    seconds: dict[str, float],
) -> dict[str, Any]:
    """Write the JSON beside the video, and return it with a summary in words."""
    record = {
        "request": {name: _plain(value) for name, value in asdict(request).items()},
        "method": stats.method,
        "config": None if method is None else _plain(vars(method)),  # None: the model's own
        "machine": describe_machine(),
        "seconds": seconds,
        "tokens": count_tokens(request, model),
        "density": stats.density,
        "stats": stats.as_dict(),
    }
    text = json.dumps(record, indent=1) + "\n"
    write_atomically(record_path(request.out), text.encode())
    return {**record, "summary": summarise(stats)}


def record_path(out: Path) -> Path:
    """Return where the JSON of a video is: beside it, and written last."""
    return out.with_suffix(".json")


def call_arguments(request: Request, model: Model | None) -> dict[str, Any]:
    """Return what to call the pipeline with, an image aside."""
    arguments = call_sizes(request, model)
    arguments |= {"prompt": request.prompt, "output_type": "np"}
    arguments["generator"] = torch.Generator().manual_seed(request.seed)
    return arguments


def call_pipeline(pipe: Any, **arguments: Any) -> Any:  # noqa: ANN401 (any pipeline class)
    """Run a pipeline; what it refuses is refused as everything else here is."""
    try:
        return pipe(**arguments)
    except ValueError as error:
        if isinstance(error, SVOOError):
            raise
        raise ConfigError(f"the pipeline refuses this request: {error}") from error


class LoopTimer:
    """A pipeline callback that times the denoising loop and reports progress."""

    def __init__(self, on_step: OnStep | None) -> None:
        """Start the clock; tell `on_step(done, steps)`."""
        self._on_step = on_step
        self._start = time.perf_counter()
        self.seconds = 0.0

    def as_argument(self, pipe: object) -> dict[str, Any]:
        """Return how to hand this to a pipeline's call: not at all if it takes no callback."""
        name = "callback_on_step_end"
        return {name: self} if takes(pipe, name) else {}

    def __call__(
        self,
        pipe: Any,  # noqa: ANN401 (any pipeline class)
        step: int,
        _timestep: object,
        state: dict[str, Any],
    ) -> dict[str, Any]:
        """Note that a step has ended."""
        self.seconds = time.perf_counter() - self._start
        if self._on_step is not None:
            self._on_step(step + 1, int(pipe.num_timesteps))
        return state


def _plain(value: object) -> Any:  # noqa: ANN401 (JSON)
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return str(value) if isinstance(value, Path) else value
