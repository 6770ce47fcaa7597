"""The clock: finds the pipeline call and denoising step of each forward.

With a pipeline it never waits for the device.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Context(Protocol):
    """What diffusers' cache context says of a forward: its branch, its step, the number of
    steps."""

    name: str
    step_index: int | None
    num_inference_steps: int | None


class Clock:
    """Counts the calls, steps and forwards of one pipeline; all its transformers share it.

    A new `scheduler.timesteps` tensor means a new pipeline call. The step is the first of these
    that is known: what `set_by_hand` said; the cache context's step; the index of the current
    timestep in `scheduler.timesteps`; the scheduler's own step index; the number of timestep
    changes so far.
    """

    def __init__(self, pipeline: object | None) -> None:
        """Watch a pipeline; None: a transformer without one."""
        self.pipeline = pipeline
        self._by_hand: tuple[int, int] | None = None
        self._timesteps_by_hand: object = None  # scheduler.timesteps at the last `set_by_hand`
        self._timesteps: object = None
        self._timestep: object = None
        self._distinct = -1
        self._running = False
        self.call = 0
        self.step = 0
        self.steps: int | None = None
        self.forward_in_step = 0
        self.guided = True  # as far as the pipeline tells

    def set_by_hand(self, step: int, steps: int) -> None:
        """Set the step of the forwards to come, for a transformer that no pipeline drives.

        A smaller step, or another number of steps, begins a new call.
        """
        if self._by_hand is None or step < self._by_hand[0] or steps != self._by_hand[1]:
            self._running = False
        self._by_hand = (step, steps)
        self._timesteps_by_hand = self._find_timesteps()

    def end_call(self) -> None:
        """Make the next forward the first of a new call."""
        self._running = False

    def begin_forward(self, timestep: object, context: Context | None) -> bool:
        """Note that a forward begins; return whether it is the first of a new call."""
        scheduler: Any = getattr(self.pipeline, "scheduler", None)
        timesteps = self._find_timesteps()
        if timesteps is not self._timesteps_by_hand:  # a pipeline call began since: use its steps
            self._by_hand = None
        new_call = not self._running or (
            timesteps is not None and timesteps is not self._timesteps
        )
        if new_call:
            self._running, self._timesteps, self._timestep = True, timesteps, None
            self._distinct = -1
            self.call += 1
            # Read once: CogVideoX changes it from step to step.
            guidance = getattr(self.pipeline, "_guidance_scale", None)
            self.guided = not isinstance(guidance, int | float) or guidance > 1
        current = getattr(self.pipeline, "_current_timestep", None)
        current = timestep if current is None else current
        before = self.step
        self._count(current)
        self._read_step(current, timesteps, scheduler, context)
        same = not new_call and self.step == before
        self.forward_in_step = self.forward_in_step + 1 if same else 0
        return new_call

    def _find_timesteps(self) -> object:
        return getattr(getattr(self.pipeline, "scheduler", None), "timesteps", None)

    def branch(self, context: Context | None) -> str:
        """Return the guidance branch of the present forward: the cache context's name, else the
        number of the forward in its step."""
        return context.name if context is not None else f"forward {self.forward_in_step}"

    def sigmas(self) -> Tensor | None:
        """Return the noise level of each step of this call, float64 `[steps]`; None if the
        scheduler has none."""
        scheduler: Any = getattr(self.pipeline, "scheduler", None)
        sigmas = getattr(scheduler, "sigmas", None)
        if not isinstance(sigmas, Tensor) or self.steps is None or len(sigmas) < self.steps:
            return None
        return sigmas[: self.steps].detach().double().cpu()

    def _count(self, timestep: object) -> None:
        """Count a timestep that differs from the one before."""
        if timestep is self._timestep:
            return
        known = self._timestep
        if (
            self.pipeline is None
            and isinstance(timestep, Tensor)
            and isinstance(known, Tensor)
            and timestep.shape == known.shape
            and torch.equal(timestep, known)  # waits for the device; only for a bare transformer
        ):
            return
        self._timestep = timestep
        self._distinct += 1

    def _read_step(
        self, timestep: object, timesteps: object, scheduler: object, context: Context | None
    ) -> None:
        """Set `step` and `steps` from the first source that knows them."""
        self.steps = len(timesteps) if isinstance(timesteps, Tensor) else None
        in_schedule = _index_in(timestep, timesteps)
        index = getattr(scheduler, "_step_index", None)
        if self._by_hand is not None:
            self.step, self.steps = self._by_hand
        elif context is not None and context.step_index is not None:
            self.step = context.step_index
            self.steps = context.num_inference_steps or self.steps
        elif in_schedule is not None:
            self.step = in_schedule
        elif isinstance(index, int):
            self.step = index
        else:
            self.step = self._distinct


def _index_in(timestep: object, timesteps: object) -> int | None:
    """Return the index of a timestep in a schedule `[steps]` if it is a view into it, else None.

    Memory addresses are compared, not values, which would wait for the device.
    """
    if not (isinstance(timestep, Tensor) and isinstance(timesteps, Tensor)):
        return None
    if timestep.dim() != 0 or timesteps.dim() != 1 or not len(timesteps):
        return None
    if timestep.untyped_storage().data_ptr() != timesteps.untyped_storage().data_ptr():
        return None
    return (timestep.storage_offset() - timesteps.storage_offset()) // max(1, timesteps.stride(0))
