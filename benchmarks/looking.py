"""Looks at the attention calls of a dense video of the embedded model: what several methods make
of the very same tokens can be measured beside one another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

import svoo
from svoo.catalogue import find_model
from svoo.core.random import seeded

PROMPT = "a red circle moves left over a checkered floor"

Look = Callable[[svoo.Run, svoo.Call, Tensor, Tensor, Tensor], None]
"""Is shown a call of a video and its query, key, value `[B, H, N, D]`."""


@dataclass(frozen=True, kw_only=True)
class LookConfig(svoo.MethodConfig):
    """Dense everywhere; shows the calls of some layers and branches to `look`."""

    name: ClassVar[str] = "look"

    look: Look
    layers: Collection[int]
    branches: Collection[str] = ("cond",)

    def start(self, run: svoo.Run) -> svoo.Method:
        """Return the method for a new video."""
        return _Looking(self, run)


class _Looking:
    state_bytes = 0

    def __init__(self, config: LookConfig, run: svoo.Run) -> None:
        self.config = config
        self.run = run

    def plan(self, query: Tensor, key: Tensor, value: Tensor, call: svoo.Call) -> svoo.Dense:
        if call.layer in self.config.layers and call.branch in self.config.branches:
            self.config.look(self.run, call, query, key, value)
        return svoo.Dense("only looking", planned=True)


def look_at_video(
    pipe: Any,  # noqa: ANN401 (any pipeline class)
    config: LookConfig,
    sizes: Mapping[str, int],
    *,
    prompt: str = PROMPT,
    last_step: int | None = None,
) -> None:
    """Generate a video, dense, and look; `sizes` are the pipeline's arguments. The loop ends after
    `last_step`."""

    def stop(pipe: Any, step: int, _timestep: object, state: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
        if step == last_step:
            pipe._interrupt = True  # diffusers' own way
        return state

    with svoo.apply(pipe, config):
        pipe(
            **{**find_model("mini").call_defaults, **sizes},
            prompt=prompt,
            generator=seeded(0),
            output_type="latent",
            callback_on_step_end=stop,
        )


def plan_call(
    method: svoo.Method,
    call: svoo.Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    counted: dict[str, float] | None = None,
) -> svoo.BlockPlan | svoo.Corrected | svoo.Dense:
    """Return what a method decides for a call, all heads together; nothing is timed, and its work
    is added to `counted`."""
    alone = svoo.Call(call.step, call.layer, call.layout, branch=call.branch, scale=call.scale)
    if counted is not None:

        def count(phase: str, share: float) -> None:
            counted[phase] = counted.get(phase, 0.0) + share

        alone = replace(alone, count=count)
    with torch.inference_mode():
        return method.plan(query, key, value, alone)
