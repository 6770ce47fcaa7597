"""The embedded model as a pipeline: `WanPipeline` with its own defaults, and clear words about bad
input."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from diffusers import WanPipeline
from diffusers.utils import logging as diffusers_logging
from transformers.utils import logging as transformers_logging

from svoo.catalogue import check_sizes, find_model
from svoo.errors import ModelError
from svoo.mini.vocabulary import grammar, vocabulary

WEIGHTS = Path(__file__).parent / "weights"
_MODEL = find_model("mini")


class MiniPipeline(WanPipeline):
    """A `WanPipeline` that knows what it was trained on: sizes, steps, and the words of its
    captions."""

    def __call__(
        self,
        prompt: str | list[str] | None = None,
        *,
        height: int = _MODEL.height,
        width: int = _MODEL.width,
        num_frames: int = _MODEL.frames,
        num_inference_steps: int = _MODEL.steps,
        guidance_scale: float = _MODEL.guidance[0],
        **settings: Any,  # noqa: ANN401 (all that WanPipeline takes)
    ) -> Any:  # noqa: ANN401 (its output type)
        """Generate as `WanPipeline` does, with defaults that this model was trained for."""
        check_request(prompt, height, width, num_frames)
        return super().__call__(
            prompt,
            height=height,
            width=width,
            num_frames=num_frames,
            num_inference_steps=num_inference_steps,
            guidance_scale=guidance_scale,
            **settings,
        )


def load(weights: Path = WEIGHTS, dtype: torch.dtype = torch.float32) -> MiniPipeline:
    """Load the embedded model from the package; refuse a weight file that is not what was
    shipped."""
    check_weights(weights)
    with quietly():
        return MiniPipeline.from_pretrained(weights, dtype=dtype, local_files_only=True)


@contextmanager
def quietly() -> Iterator[None]:
    """Keep the libraries' bars of a load that takes a second off the screen, and what transformers
    says about packages that are not needed here (torchvision, for picture encoders)."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    shown = [
        library
        for library in (diffusers_logging, transformers_logging)
        if library.is_progress_bar_enabled()
    ]
    for library in shown:
        library.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        for library in shown:
            library.enable_progress_bar()


def check_weights(weights: Path) -> None:
    """Compare every weight file with the hash that was shipped beside it."""
    try:
        hashes = json.loads((weights / "hashes.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the embedded model is not complete: {weights / 'hashes.json'}: {error}"
        ) from error
    for name, expected in hashes.items():
        try:
            found = hashlib.sha256((weights / name).read_bytes()).hexdigest()
        except OSError as error:
            raise ModelError(f"cannot read the weight file {weights / name}: {error}") from error
        if found != expected:
            raise ModelError(
                f"the weight file {weights / name} is damaged: its SHA-256 is {found}, "
                f"expected {expected}; install svoo again"
            )


def check_request(prompt: str | list[str] | None, height: int, width: int, frames: int) -> None:
    """Refuse sizes that the model cannot have; warn of words that it does not know."""
    for text in [prompt] if isinstance(prompt, str) else prompt or []:
        _warn_of_unknown_words(text)
    check_sizes(frames, height, width)


def _warn_of_unknown_words(prompt: str) -> None:
    known = set(vocabulary())
    unknown = [word for word in re.findall(r"\w+", prompt.lower()) if word not in known]
    if unknown:
        warnings.warn(
            f"the embedded model does not know {', '.join(dict.fromkeys(unknown))}; "
            f"it was trained on\n{grammar()}",
            stacklevel=4,
        )
