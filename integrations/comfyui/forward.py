"""What one forward of a model says about its attention calls: step, branches, grid, layout."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from svoo import Dense, VideoLayout

from .models import Grid, KnownModel, find_grid, find_layout, find_model

BRANCHES = {0: "cond", 1: "uncond"}


def name_arguments(function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a model's forward by name, whatever their order."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    found = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= found.pop(parameter.name, {})
    return found


@dataclass
class Forward:
    """One forward of a known video model."""

    known: KnownModel
    model: Any
    grid: Grid
    step: int
    steps: int
    sigmas: Tensor
    cond_or_uncond: list[int]
    window: tuple[int, ...]
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    _mask: tuple[Tensor, VideoLayout | Dense] | None = None

    @property
    def video(self) -> int:
        """Number of video tokens."""
        return math.prod(self.grid)

    def find_layer(self, options: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the layer of an attention call, and how often this forward has called it before;
        None outside the blocks."""
        kind, index = options.get("block_type"), options.get("block_index")
        first = self.known.first_layers(self.model).get(str(kind))
        if first is None or not isinstance(index, int):
            return None
        self.calls[str(kind), index] += 1
        return first + index, self.calls[str(kind), index] - 1

    def find_layout(self, tokens: int, batch: int, mask: Tensor | None) -> VideoLayout | Dense:
        """Return how the sequence of a call lies; a mask is read once per forward."""
        if mask is None:
            return find_layout(self.known, self.grid, tokens, batch, None)
        if self._mask is None or self._mask[0] is not mask:
            self._mask = mask, find_layout(self.known, self.grid, tokens, batch, mask)
        return self._mask[1]

    def branches(self, batch: int) -> tuple[str, ...] | str:
        """Return the guidance branch of each sample: a batch holds one equal part for each entry
        of ComfyUI's list."""
        parts = len(self.cond_or_uncond)
        if not parts or batch % parts:
            return "cond"
        names = [BRANCHES.get(number, f"branch {number}") for number in self.cond_or_uncond]
        return tuple(name for name in names for _ in range(batch // parts))


def look_at(model: object, arguments: Mapping[str, Any]) -> Forward | Dense:
    """Return what a forward says, or dense with what cannot be known."""
    known = find_model(model)
    if known is None:
        return Dense(
            f"{type(model).__name__} is no video model that this node knows; it knows Wan and "
            "HunyuanVideo"
        )
    options = arguments["transformer_options"]
    grid = find_grid(arguments["x"], getattr(model, "patch_size", ()))
    if grid is None:
        return Dense("the latent is no video: it has no frames")
    sigmas = options.get("sample_sigmas")
    if sigmas is None or len(sigmas) < 2:
        return Dense("the sampler does not tell its steps (sample_sigmas)")
    prompts = [arguments.get(name) for name in ("context", "clip_fea")]
    lengths = [prompt.shape[1] for prompt in prompts if prompt is not None]
    if not known.text and math.prod(grid) in lengths:
        return Dense(
            f"the prompt has as many tokens as the video, {math.prod(grid)}: self-attention and "
            "cross-attention look alike"
        )
    window = getattr(options.get("context_window"), "index_list", ())
    return Forward(
        known,
        model,
        grid,
        find_step(options.get("sigmas"), sigmas),
        len(sigmas) - 1,
        sigmas,
        list(options.get("cond_or_uncond", ())),
        tuple(window),
    )


def find_step(sigma: Tensor | None, sigmas: Tensor) -> int:
    """Return the step whose noise level `sigmas[step]` is reached and not yet passed; samplers
    also look between two steps."""
    if sigma is None:
        return 0
    now = float(sigma.flatten()[0])
    levels: list[float] = sigmas.tolist()
    reached = sum(level >= now * (1 - 1e-4) - 1e-6 for level in levels)
    return min(max(reached - 1, 0), len(levels) - 2)
