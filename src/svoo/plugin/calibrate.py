"""Prompts and images from files."""

from __future__ import annotations

import codecs
import unicodedata
from pathlib import Path
from typing import Any

from svoo.errors import ConfigError
from svoo.plugin.load import read_image

MINI_PROMPTS = Path(__file__).parents[1] / "mini" / "prompts.txt"
_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def read_prompts(path: Path) -> list[str]:
    """Read one prompt per line of a UTF-8 file; empty lines and those that begin with # are
    skipped."""
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read the prompts {path}: {error}") from error
    texts = [_read_line(path, number, line) for number, line in enumerate(lines, 1)]
    prompts = [text for text in texts if text and not text.startswith("#")]
    if not prompts:
        raise ConfigError(f"{path} holds no prompt; write one per line")
    return prompts


def _read_line(path: Path, number: int, line: bytes) -> str:
    """Return a line as text, or say what is wrong with it."""
    try:
        text = line.decode().replace("\t", " ").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"cannot read the prompts {path}: line {number} is no UTF-8 text: {error.reason}"
        ) from error
    bad = [letter for letter in text if unicodedata.category(letter) == "Cc"]
    if bad:
        raise ConfigError(
            f"cannot read the prompts {path}: line {number} holds the control character {bad[0]!a}"
        )
    return text


def read_inputs(
    prompts: Path,
    images: Path | None = None,
    count: int | None = None,
    *,
    option: str = "--inputs",
) -> list[dict[str, Any]]:
    """Read prompts and, for image-to-video, the pictures of a folder in the order of their
    names. `option`: what the user calls the count."""
    texts = read_prompts(prompts)
    if count is not None and not 1 <= count <= len(texts):
        raise ConfigError(f"{option} must be 1 to the {len(texts)} prompts of {prompts}: {count}")
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
