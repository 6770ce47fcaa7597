"""Recording by name: load a pipeline, read prompts and images, record its profile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from svoo.errors import ConfigError
from svoo.plugin.load import check_takes, open_pipeline, read_image
from svoo.plugin.record import RecordConfig, record_profile
from svoo.plugin.request import Request, call_sizes, known_model
from svoo.profiles.profile import Profile
from svoo.storage import check_writable

MINI_PROMPTS = Path(__file__).parents[1] / "mini" / "prompts.txt"
_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def read_prompts(path: Path) -> list[str]:
    """Read one prompt per line of a UTF-8 file; empty lines and those that begin with # are
    skipped."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the prompts {path}: {error}") from error
    texts = [line for line in lines if line and not line.startswith("#")]
    if not texts:
        raise ConfigError(f"{path} holds no prompt; write one per line")
    return texts


def read_inputs(
    prompts: Path, images: Path | None = None, count: int | None = None
) -> list[dict[str, Any]]:
    """Read prompts and, for image-to-video, the pictures of a folder in the order of their
    names."""
    texts = read_prompts(prompts)
    if count is not None and not 1 <= count <= len(texts):
        raise ConfigError(f"--inputs must be 1 to the {len(texts)} prompts of {prompts}: {count}")
    inputs: list[dict[str, Any]] = [{"prompt": text} for text in texts[:count]]
    if images is None:
        return inputs
    if not images.is_dir():
        raise ConfigError(f"--images must be a folder, got {images}")
    pictures = sorted(path for path in images.iterdir() if path.suffix.lower() in _PICTURES)
    if len(pictures) < len(inputs):
        raise ConfigError(f"{images} holds {len(pictures)} pictures for {len(inputs)} prompts")
    return [
        {**entry, "image": read_image(picture)}
        for entry, picture in zip(inputs, pictures, strict=False)
    ]


def record_by_name(
    request: Request,
    inputs: list[dict[str, Any]],
    measuring: RecordConfig,
    *,
    restart: bool = False,
    on_step: Callable[[int, int], None] | None = None,
) -> Profile:
    """Record the profile that a request asks for: its model, sizes and output; see
    `record_profile`."""
    check_writable(request.out)
    model = known_model(request.model)
    pipe = open_pipeline(request, model)
    check_takes(request, pipe, image="image" in inputs[0])
    return record_profile(
        pipe,
        inputs,
        out=request.out,
        restart=restart,
        on_step=on_step,
        **vars(measuring),
        **call_sizes(request, model),
    )
