"""Generation by name: load a pipeline, run it, write the video whole or not at all."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from PIL.Image import Image

from svoo.catalogue import Model, find_model
from svoo.errors import ConfigError, ModelError, SVOOError
from svoo.methods.dense import DenseConfig
from svoo.methods.svoo.config import SVOOConfig
from svoo.metrics.video import write_video
from svoo.plugin.apply import apply
from svoo.plugin.machine import describe_machine
from svoo.profiles.profile import Profile
from svoo.storage import check_writable, write_atomically

Preset = Literal["default", "paper", "release"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to generate; None leaves a setting to the model."""

    prompt: str
    out: Path
    model: str = "mini"
    image: Path | None = None
    method: Literal["svoo", "dense"] = "svoo"
    preset: Preset = "default"
    mass: float | None = None
    steps: int | None = None
    frames: int | None = None
    height: int | None = None
    width: int | None = None
    seed: int = 0
    guidance: float | None = None
    dtype: str | None = None
    device: str | None = None
    offload: bool = False
    profile: Path | None = None


def check_device(request: Request) -> None:
    """Refuse a device that is not here, and offloading without one to offload from."""
    if request.offload and not torch.accelerator.is_available():
        raise ConfigError("--offload moves idle parts off a GPU, and there is none here")
    try:
        torch.empty(0, device=request.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--device {request.device} cannot be used here: {reason}") from error


def known_model(name: str) -> Model | None:
    """Return the catalogue's row of a name, or None for a path or another hub id."""
    try:
        return find_model(name)
    except ModelError:
        return None


def make_config(request: Request, model: Model | None) -> SVOOConfig:
    """Return the settings of the preset, with the request's mass."""
    if request.preset == "release":
        if model is None:
            raise ConfigError(
                "the release preset needs a model of the catalogue; see `svoo models`"
            )
        config = SVOOConfig.release(model.name)
    elif request.preset == "paper":
        config = SVOOConfig.paper(model.name if model else None)
    else:
        config = SVOOConfig.for_model(model.name) if model else SVOOConfig()
    if request.mass is None:
        return config
    return SVOOConfig(**(vars(config) | {"mass": request.mass}))


def load_pipeline(request: Request, model: Model | None) -> Any:  # noqa: ANN401 (any pipeline class)
    """Load by short name, hub id or path; what cannot be had is refused with what to do."""
    if request.model == "mini":
        from svoo.mini.pipeline import load

        return load(dtype=DTYPES[request.dtype or "float32"])
    from diffusers import DiffusionPipeline

    place = model.hub_id if model else request.model
    dtype = DTYPES[request.dtype or ("bfloat16" if torch.cuda.is_available() else "float32")]
    try:
        return DiffusionPipeline.from_pretrained(place, dtype=dtype)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"cannot load {place!r}: {str(error).splitlines()[0]}\n"
            "give a short name (`svoo models`), a hub id, or the path of a folder that "
            "`save_pretrained` wrote; without a network only folders and models already in the "
            "hub's cache can be loaded"
        ) from error


def open_pipeline(request: Request, model: Model | None) -> Any:  # noqa: ANN401 (any pipeline class)
    """Load a pipeline and put it where the request says, its own progress bar off."""
    check_device(request)
    pipe = load_pipeline(request, model)
    if request.offload:
        pipe.enable_model_cpu_offload()
    elif request.device is not None or torch.cuda.is_available():
        pipe.to(request.device or "cuda")
    pipe.set_progress_bar_config(disable=True)
    return pipe


def check_image(request: Request, pipe: object, *, given: bool) -> None:
    """Refuse an image too many or too few."""
    takes_image = "ImageToVideo" in type(pipe).__name__
    if given and not takes_image:
        raise ConfigError(f"{request.model} makes video from text: it takes no image")
    if takes_image and not given:
        raise ConfigError(f"{request.model} makes video from an image: give one")


def call_sizes(request: Request, model: Model | None) -> dict[str, Any]:
    """Return the model's own call arguments, replaced by what the request asks for."""
    defaults: dict[str, Any] = {}
    if model is not None:
        defaults = {
            "num_inference_steps": model.steps,
            "num_frames": model.frames,
            "height": model.height,
            "width": model.width,
            "guidance_scale": model.guidance[0],
            **model.call_defaults,
        }
        if len(model.guidance) > 1:
            defaults["guidance_scale_2"] = model.guidance[1]
    asked = {
        "num_inference_steps": request.steps,
        "num_frames": request.frames,
        "height": request.height,
        "width": request.width,
        "guidance_scale": request.guidance,
    }
    return defaults | {name: value for name, value in asked.items() if value is not None}


def call_arguments(request: Request, model: Model | None) -> dict[str, Any]:
    """Return what to call the pipeline with."""
    arguments = call_sizes(request, model)
    arguments |= {"prompt": request.prompt, "output_type": "np"}
    arguments["generator"] = torch.Generator().manual_seed(request.seed)
    if request.image is not None:
        arguments["image"] = read_image(request.image)
    return arguments


def read_image(path: Path) -> Image:
    """Read a picture, or say why not."""
    from diffusers.utils import load_image

    try:
        picture: Image = load_image(str(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the image {path}: {error}") from error
    return picture


def generate(
    request: Request, on_step: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Generate, write the mp4 and the JSON beside it, and return what the JSON says.

    `on_step(done, steps)` is told of progress. Whatever happens, the pipeline is restored and no
    half file is left.
    """
    check_writable(request.out)
    model = known_model(request.model)
    config = make_config(request, model)
    profile = "auto" if request.profile is None else Profile.load(request.profile)
    pipe = open_pipeline(request, model)
    check_image(request, pipe, given=request.image is not None)
    arguments = call_arguments(request, model)
    clock = LoopTimer(on_step)
    start = time.perf_counter()
    method = config if request.method == "svoo" else DenseConfig()
    with apply(pipe, method, profile) as handle:
        frames = call_pipeline(pipe, **arguments, **clock.as_argument(pipe)).frames[0]
        stats, summary = handle.stats(), handle.summary()
    seconds = {"total": time.perf_counter() - start, "denoising": clock.seconds}
    write_video(frames, request.out)
    record = {
        "request": {name: _plain(value) for name, value in asdict(request).items()},
        "config": _plain(vars(config)),
        "machine": describe_machine(),
        "seconds": seconds,
        "density": stats.density,
        "stats": stats.as_dict(),
    }
    write_atomically(
        request.out.with_suffix(".json"), (json.dumps(record, indent=1) + "\n").encode()
    )
    return {**record, "summary": summary}


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

    def __init__(self, on_step: Callable[[int, int], None] | None) -> None:
        """Start the clock; tell `on_step(done, steps)`."""
        self._on_step = on_step
        self._start = time.perf_counter()
        self.seconds = 0.0

    def as_argument(self, pipe: object) -> dict[str, Any]:
        """Return how to hand this to a pipeline's call: not at all if it takes no callback."""
        taken = inspect.signature(type(pipe).__call__).parameters
        takes_any = any(entry.kind is entry.VAR_KEYWORD for entry in taken.values())
        if takes_any or "callback_on_step_end" in taken:
            return {"callback_on_step_end": self}
        return {}

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
