"""Generation by name: run a pipeline that was asked for, write the video whole or not at all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL.Image import Image

from svoo.catalogue import Model
from svoo.errors import ConfigError, ModelError, SVOOError
from svoo.methods.base import MethodConfig
from svoo.metrics.video import FPS, check_video_path, write_video
from svoo.plugin.adapters import find_transformers
from svoo.plugin.apply import apply
from svoo.plugin.load import check_takes, open_pipeline, read_image, takes
from svoo.plugin.machine import describe_machine
from svoo.plugin.parallel import check_degree, others_alive, parallelise
from svoo.plugin.ranks import Ranks, find_ranks
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
from svoo.storage import locked, write_atomically

OnStep = Callable[[int, int], None]


@dataclass(frozen=True)
class Materials:
    """What a request names by a path, read: it can go to another machine."""

    profile: Profile | Literal["auto"] | None
    image: Image | None


def read_materials(request: Request) -> Materials:
    """Read the profile and the image that a request names; sta reads its own file."""
    profile: Profile | Literal["auto"] | None = "auto"
    if request.profile is not None:
        profile = None if request.method == "sta" else Profile.load(request.profile)
    return Materials(
        profile=profile,
        image=None if request.image is None else read_image(request.image),
    )


def generate(request: Request, on_step: OnStep | None = None) -> dict[str, Any]:
    """Generate one video and write it and the JSON beside it, or neither; return what that says
    and a summary in words. `on_step(done, steps)` is told of progress.

    Processes that torchrun started share the video, and the first of them writes."""
    ranks, model = find_ranks(), known_model(request.model)
    request = replace(request, device=ranks.choose_device(request.device))
    if model is not None:
        check_degree(ranks.count, model.heads)
    if ranks.first:
        check_request(request)
    # One at a time writes there, and of several processes that share a video the first.
    own = locked(request.out) if ranks.first else nullcontext()
    with own, ranks.joined(request.device), others_alive():
        return Generator(request, read_materials(request), ranks)(request, on_step)


def check_request(request: Request) -> None:
    """Refuse an output that cannot be written and settings that no method takes, before any
    work."""
    model = known_model(request.model)
    choose_method(request, model)
    check_video_path(request.out, video_shape(request, model))


class Generator:
    """A pipeline that is loaded once, and makes videos of it."""

    def __init__(self, first: Request, materials: Materials, ranks: Ranks | None = None) -> None:
        """Load the pipeline of a request, and spread it over the processes that have met."""
        self._ranks = ranks or Ranks()
        self._model = known_model(first.model)
        self._method = choose_method(first, self._model)
        self._profile = materials.profile
        self._image = {} if materials.image is None else {"image": materials.image}
        start = time.perf_counter()
        self._pipe = open_pipeline(first, self._model)
        check_takes(first, self._pipe, image=bool(self._image))
        if self._ranks.count > 1:
            has_text = any(adapter.prefix_mask for _, adapter in find_transformers(self._pipe))
            tokens = count_tokens(first, self._model) or 1
            parallelise(self._pipe, uneven=has_text or tokens % self._ranks.count > 0)
        self._loading = time.perf_counter() - start

    def __call__(self, request: Request, on_step: OnStep | None = None) -> dict[str, Any]:
        """Write the video of a request that differs from the first in prompt, seed and output
        only, and the JSON beside it; return what that says, with a summary in words.

        Whatever happens, the pipeline is restored and no half file is left. The first video's
        times include loading.
        """
        arguments = call_arguments(request, self._model) | self._image
        if not self._ranks.first:
            arguments["output_type"] = "latent"  # who does not write need not decode
        made = run_applied(self._pipe, self._method, self._profile, arguments, on_step)
        total = self._loading + made.total
        seconds = {"loading": self._loading, "denoising": made.denoising, "total": total}
        self._loading = 0.0
        record = self._describe(request, made.stats, seconds)
        if self._ranks.first:
            check_finite(made)
            own = FPS if self._model is None else self._model.fps
            write_video(made.frames, request.out, request.fps or own)
            try:
                write_record(request.out, record)
            except BaseException:
                # One of an earlier video would describe another than lies there.
                record_path(request.out).unlink(missing_ok=True)
                raise
        return {**record, "summary": summarise(made.stats)}

    def _describe(
        self, request: Request, stats: RunStats, seconds: dict[str, float]
    ) -> dict[str, Any]:
        """Return what the JSON beside the video says."""
        return {
            "request": describe_request(request),
            "method": stats.method,
            "config": None if self._method is None else _plain(vars(self._method)),  # None: own
            "machine": describe_machine(),
            "seconds": seconds,
            "tokens": count_tokens(request, self._model),
            "density": stats.density,
            "stats": stats.as_dict(),
        }


@dataclass(frozen=True, eq=False)
class Made:
    """One video's frames `[frames, height, width, 3]` in [0, 1], what happened, and the seconds of
    its denoising loop and of the whole call."""

    frames: Any
    stats: RunStats
    denoising: float
    total: float


def run_applied(
    pipe: Any,  # noqa: ANN401 (any pipeline class)
    method: MethodConfig | None,
    profile: Profile | str | None,
    arguments: dict[str, Any],
    on_step: OnStep | None,
) -> Made:
    """Run a pipeline once with a method applied; what `on_step` raises stops it.

    However it ends, the pipeline is as it was before.
    """
    clock, begin = LoopTimer(on_step), time.perf_counter()
    try:
        with apply(pipe, method, profile) as handle:
            frames = call_pipeline(pipe, **arguments, **clock.as_argument(pipe)).frames[0]
            stats = handle.stats()
    except BaseException:
        pipe.maybe_free_model_hooks()  # its last line: offloaded parts go back, caches are reset
        raise
    return Made(frames, stats, clock.seconds, time.perf_counter() - begin)


def describe_request(request: Request) -> dict[str, Any]:
    """Return a request as plain data."""
    return {name: _plain(value) for name, value in asdict(request).items()}


def check_finite(made: Made) -> None:
    """Refuse a video of nothing: it would be written as black, with figures that are none."""
    if not np.isfinite(made.frames).all():
        raise ModelError(
            f"the video of {made.stats.method} has values that are no numbers (nan or infinite); "
            "try another method, less guidance or --dtype float32"
        )


def write_record(out: Path, record: dict[str, Any]) -> None:
    """Write the JSON beside a video."""
    write_atomically(record_path(out), (json.dumps(record, indent=1) + "\n").encode())


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
