"""A method chosen by plain words, as programs without Python's objects give them."""

from __future__ import annotations

from dataclasses import replace

from svoo.methods import find_method
from svoo.methods.base import MethodConfig, require_choice
from svoo.methods.svoo.config import SVOOConfig
from svoo.plugin.request import QUALITIES


def choose_config(
    method: str = "svoo",
    quality: str = "balanced",
    dense_steps: int | float | None = None,
    *,
    strict: bool = False,
    model: str | None = None,
) -> MethodConfig:
    """Return the settings of a method by name; `quality` is svoo's, other methods have their own.

    `model`, a name of the catalogue, chooses what the method's authors set for it. `dense_steps`
    counts steps (int) or is a fraction of them (float); None: as the method says.
    """
    require_choice("quality", quality, QUALITIES)
    config = find_method(method, model)
    if method == "svoo":
        presets = (SVOOConfig.fast, SVOOConfig.balanced, SVOOConfig.careful)
        config = dict(zip(QUALITIES, presets, strict=True))[quality]()
    if dense_steps is not None:
        config = replace(config, dense_steps=dense_steps)
    return replace(config, strict=strict)
