"""What is refused at the entrances: settings, runs and calls that do not fit together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from svoo.core.layout import VideoLayout
from svoo.core.validate import check_tensor
from svoo.errors import ConfigError, ShapeError
from svoo.methods.base import MethodConfig, Run, require, require_count
from svoo.profiles.profile import Profile


def check_config(config: object) -> None:
    """Refuse what is no method's settings."""
    if not isinstance(config, MethodConfig):
        given = f"the class {config.__name__}" if isinstance(config, type) else repr(config)
        raise ConfigError(
            f"config must be a MethodConfig such as svoo.SVOOConfig(), got {given[:80]}"
        )


def check_layout(
    layout: VideoLayout | None, query: Tensor, key: Tensor, *, values: bool = True
) -> None:
    """Refuse what is no layout, or not that of query `[B, H, N, D]` and key `[B, H, M, D]`."""
    if layout is None:
        return
    fits = isinstance(layout, VideoLayout)
    require("layout", layout, "a VideoLayout(frames, height, width, ...) or None", fits=fits)
    for tokens in (query, key):
        layout.check(tokens.shape[0], tokens.shape[2], values=values)


def check_generator(generator: torch.Generator | None) -> None:
    """Refuse what nothing can be drawn from."""
    fits = generator is None or isinstance(generator, torch.Generator)
    require("generator", generator, "a torch.Generator or None", fits=fits)


def check_run(run: Run) -> None:
    """Refuse counts below 1, and what is not known of every step."""
    for name in ("steps", "layers", "heads", "stages"):
        require_count(name, getattr(run, name), 1)
    for name, by_step in (("sigmas", run.sigmas), ("stage_of_step", run.stage_of_step)):
        if by_step is None:
            continue
        check_tensor(name, by_step)
        if by_step.shape != (run.steps,):
            raise ShapeError(
                f"{name} must have one number for each of the {run.steps} steps, got "
                f"{list(by_step.shape)}"
            )
    if run.profile is not None:
        expected = "a Profile (svoo.Profile.load(path)) or None"
        require("profile", run.profile, expected, fits=isinstance(run.profile, Profile))
        run.profile.check_fits(run.layers, run.heads)


def check_step(step: int, steps: int | None, layer: int, layers: int) -> None:
    """Refuse a step (of so many, if given) or a layer that the run does not have."""
    require_count("step", step, 0)
    require_count("layer", layer, 0)
    if steps is not None:
        require("step", step, f"below the {steps} steps", fits=step < steps)
    require("layer", layer, f"below the {layers} layers", fits=layer < layers)


def check_call(
    run: Run, query: Tensor, step: int, layer: int, stage: int, branch: object, head_offset: int
) -> None:
    """Refuse a call of query `[B, H, N, D]` that the run cannot have. A step beyond the last is
    taken: some loops are longer than their scheduler says."""
    check_step(step, None, layer, run.layers)
    require_count("stage", stage, 0)
    require("stage", stage, f"below the {run.stages} stages", fits=stage < run.stages)
    require_count("head_offset", head_offset, 0)
    heads, batch = query.shape[1], query.shape[0]
    if head_offset + heads > run.heads:
        raise ShapeError(
            f"query has {heads} heads from number {head_offset}, but the session was made for "
            f"{run.heads}"
        )
    if isinstance(branch, str):
        return
    names = branch if isinstance(branch, Sequence) else ()
    fits = len(names) == batch and all(isinstance(name, str) for name in names)
    require("branch", branch, f"a name, or {batch} names, one per sample", fits=fits)
