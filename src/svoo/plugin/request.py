"""What is asked of a pipeline by name: checked when it is made, before anything is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from svoo.catalogue import Model, find_model
from svoo.errors import ConfigError, ModelError
from svoo.methods import PRESETS, available_methods, find_method
from svoo.methods.base import MethodConfig
from svoo.methods.sta import STAConfig
from svoo.methods.svoo.config import SVOOConfig
from svoo.metrics.video import GIF_FPS
from svoo.profiles.windows import WindowTable

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
QUALITIES = ("fast", "balanced", "careful")
USE_PROFILES = ("paper", "release", "sta")  # methods that `--profile` is for


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to generate or measure; None leaves a setting to the model.

    `method=None` is svoo, unless the video is too small for sparse attention to pay.
    """

    prompt: str
    out: Path
    model: str = "mini"
    image: Path | None = None
    negative_prompt: str | None = None
    lora: str | None = None
    method: str | None = None
    quality: str | None = None
    mass: float | None = None
    steps: int | None = None
    frames: int | None = None
    height: int | None = None
    width: int | None = None
    fps: float | None = None
    seed: int = 0
    guidance: float | None = None
    dtype: str | None = None
    device: str | None = None
    offload: bool = False
    profile: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what no pipeline could do, by the name of the option."""
        for name in ("steps", "frames", "height", "width"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name} must be a whole number from 1, got {value}")
        if self.guidance is not None and not math.isfinite(self.guidance):
            raise ConfigError(f"--guidance must be a finite number, got {self.guidance}")
        if self.fps is not None and not 1 <= self.fps <= 240:
            raise ConfigError(f"--fps must be a number from 1 to 240, got {self.fps}")
        if self.fps is not None and self.fps > GIF_FPS and self.out.suffix.lower() == ".gif":
            raise ConfigError(f"--fps must be at most {GIF_FPS} for a GIF, got {self.fps}")
        if not 0 <= self.seed < 1 << 64:
            raise ConfigError(f"--seed must be a whole number of 64 bits, got {self.seed}")
        _check_choice("dtype", self.dtype, DTYPES)
        names = (*(row.name for row in available_methods()), *PRESETS)
        _check_choice("method", self.method, names)
        _check_choice("quality", self.quality, QUALITIES)
        if self.quality is not None and self.method not in (None, "svoo"):
            raise ConfigError(f"--quality is svoo's; --method {self.method} has its own settings")
        if self.quality is not None and self.mass is not None:
            raise ConfigError("--quality and --mass are two ways to decide what is kept: give one")
        uses_profile = self.mass is not None or self.method in USE_PROFILES
        if self.profile is not None and not uses_profile:
            raise ConfigError(
                f"--profile is for --method {', '.join(USE_PROFILES)}, or --mass: "
                f"{self.method or 'default mode'} does not use one"
            )
        for name in ("prompt", "negative_prompt"):
            text = getattr(self, name) or ""
            try:
                text.encode()
            except UnicodeEncodeError as error:
                shown = name.replace("_", "-")
                raise ConfigError(f"--{shown} is no UTF-8 text: {text!a}") from error


def _check_choice(name: str, value: str | None, choices: Any) -> None:  # noqa: ANN401 (any names)
    if value is not None and value not in choices:
        raise ConfigError(f"--{name} must be one of {', '.join(choices)}, got {value!r}")


def known_model(name: str) -> Model | None:
    """Return the catalogue's row of a name, or None for a path or another hub id."""
    try:
        return find_model(name)
    except ModelError:
        return None


def choose_method(request: Request, model: Model | None) -> MethodConfig | None:
    """Return the settings of the method that is asked for, with the request's quality and mass;
    None where nothing is asked for: svoo, where the video is large enough."""
    if request.method is None and request.quality is None and request.mass is None:
        return None
    config = find_method(request.method or "svoo", model.name if model else None)
    if request.quality is not None:
        presets = {
            "fast": SVOOConfig.fast,
            "balanced": SVOOConfig.balanced,
            "careful": SVOOConfig.careful,
        }
        config = presets[request.quality]()
    if isinstance(config, STAConfig) and request.profile is not None:
        WindowTable.load(request.profile)  # refuses another file, before any work
        config = replace(config, windows=str(request.profile))
    if request.mass is None:
        return config
    if not isinstance(config, SVOOConfig):
        raise ConfigError(f"--mass is svoo's; --method {request.method} has its own settings")
    return replace(config, mass=request.mass, tolerance=None)


def count_tokens(request: Request, model: Model | None) -> int | None:
    """Return the tokens of the video, or None where the model is not in the catalogue."""
    shape = video_shape(request, model)
    return None if model is None or shape is None else model.count_tokens(*shape)


def video_shape(request: Request, model: Model | None) -> tuple[int, int, int] | None:
    """Return frames, height and width, or None where the model decides and is not known."""
    sizes = call_sizes(request, model)
    names = ("num_frames", "height", "width")
    if any(name not in sizes for name in names):
        return None
    frames, height, width = (int(sizes[name]) for name in names)
    return frames, height, width


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
        "negative_prompt": request.negative_prompt,
    }
    return defaults | {name: value for name, value in asked.items() if value is not None}
