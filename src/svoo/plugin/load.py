"""Finding and opening pipelines: by short name, hub id or path, on the device asked for."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from PIL.Image import DecompressionBombError, Image

from svoo.catalogue import Model
from svoo.errors import ConfigError, ModelError
from svoo.plugin.memory import check_memory, keep_freed_memory
from svoo.plugin.request import DTYPES, Request


def open_pipeline(request: Request, model: Model | None) -> Any:  # noqa: ANN401 (any pipeline class)
    """Load a pipeline and put it where the request says, its own progress bar off."""
    check_device(request)
    check_memory(request, model)
    check_lora(request)
    keep_freed_memory()
    pipe = load_pipeline(request, model)
    if request.lora is not None:
        load_lora(pipe, request.lora)
    if request.offload:
        pipe.enable_model_cpu_offload(device=request.device)
    elif request.device is not None or torch.cuda.is_available():
        pipe.to(request.device or "cuda")
    pipe.set_progress_bar_config(disable=True)
    return pipe


def check_device(request: Request) -> None:
    """Refuse a device that is not here, and offloading without one to offload from."""
    if request.offload and not torch.accelerator.is_available():
        raise ConfigError("--offload moves idle parts off a GPU, and there is none here")
    try:
        torch.zeros(1, device=request.device).item()  # it must hold numbers: meta has none
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].split(". ")[0]  # torch adds pages of advice
        raise ConfigError(f"--device {request.device} cannot be used here: {reason}") from error


def load_pipeline(request: Request, model: Model | None) -> Any:  # noqa: ANN401 (any pipeline class)
    """Load by short name, hub id or path; what cannot be had is refused with what to do."""
    from svoo.mini.pipeline import load, quietly

    if model is not None and model.name == "mini":
        dtype = DTYPES[request.dtype or "float32"]
        if request.image is None or not model.takes_image:
            return load(dtype=dtype)
        from svoo.mini.from_image import load_from_image

        return load_from_image(dtype=dtype)
    from diffusers import DiffusionPipeline

    source = model.hub_id if model else request.model
    dtype = DTYPES[request.dtype or ("bfloat16" if torch.cuda.is_available() else "float32")]
    try:
        with quietly():
            return DiffusionPipeline.from_pretrained(source, dtype=dtype)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"cannot load {source!r}: {str(error).splitlines()[0]}\n"
            "give a short name (`svoo models`), a hub id, or the path of a folder that "
            "`save_pretrained` wrote; without a network only folders and models already in the "
            "hub's cache can be loaded"
        ) from error


def check_lora(request: Request) -> None:
    """Refuse a LoRA file that is not there, before the model is loaded."""
    lora = request.lora
    if lora is not None and lora.endswith(".safetensors") and not Path(lora).is_file():
        raise ConfigError(f"--lora {lora} is no file; give a file, a folder or a hub id")


def load_lora(pipe: Any, lora: str) -> None:  # noqa: ANN401 (any pipeline class)
    """Load a LoRA from a file, a folder or the hub into a pipeline."""
    if not hasattr(pipe, "load_lora_weights"):
        raise ConfigError(f"{type(pipe).__name__} takes no LoRA")
    file = Path(lora)
    named = {"weight_name": file.name} if file.is_file() else {}
    try:
        pipe.load_lora_weights(str(file.parent) if named else lora, **named)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ModelError(f"cannot load the LoRA {lora}: {reason}") from error


def check_takes(request: Request, pipe: object, *, image: bool) -> None:
    """Refuse an image too many or too few, and a negative prompt where none is taken."""
    takes_image = "ImageToVideo" in type(pipe).__name__
    if image and not takes_image:
        raise ConfigError(f"{request.model} makes video from text: it takes no image")
    if takes_image and not image:
        raise ConfigError(f"{request.model} makes video from an image: give one")
    if request.negative_prompt is not None and not takes(pipe, "negative_prompt"):
        raise ConfigError(f"{request.model} takes no negative prompt")


def takes(pipe: object, argument: str) -> bool:
    """Return whether a pipeline's call has an argument of that name."""
    taken = inspect.signature(type(pipe).__call__).parameters
    takes_any = any(entry.kind is entry.VAR_KEYWORD for entry in taken.values())
    return takes_any or argument in taken


def read_image(path: Path) -> Image:
    """Read a picture, or say why not."""
    from diffusers.utils import load_image

    try:
        picture: Image = load_image(str(path))
    except (OSError, ValueError, SyntaxError, DecompressionBombError) as error:
        raise ConfigError(f"cannot read the image {path}: {error}") from error
    return picture
