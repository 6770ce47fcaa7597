"""The clock: which denoising step a forward belongs to, without waiting for a device."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Context(Protocol):
    """What diffusers' cache context tells of a forward."""

    name: str
    step_index: int | None
    num_inference_steps: int | None


class Clock:
    """Counts calls, steps and forwards of one pipeline; all its transformers share it.

    A new `scheduler.timesteps` tensor is a new call. The step comes from the cache context where
    the pipeline gives one, else from the place of the current timestep in `scheduler.timesteps`,
    else from the scheduler's own index, else by counting timesteps that differ. `set_by_hand`
    overrides all.
    """

    def __init__(self, pipeline: object | None) -> None:
        """Watch a pipeline, or None for a bare transformer."""
        self.pipeline = pipeline
        self._by_hand: tuple[int, int] | None = None
        self._timesteps_by_hand: object = None  # the scheduler's when the step was set by hand
        self._timesteps: object = None
        self._timestep: object = None
        self._distinct = -1
        self._running = False
        self.call = 0
        self.step = 0
        self.steps: int | None = None
        self.forward_in_step = 0

    def set_by_hand(self, step: int, steps: int) -> None:
        """Tell the step of the forwards to come, for a transformer that no pipeline drives."""
        if self._by_hand is None or step < self._by_hand[0] or steps != self._by_hand[1]:
            self._running = False
        self._by_hand = (step, steps)
        self._timesteps_by_hand = self._find_timesteps()

    def end_call(self) -> None:
        """Take the next forward as the first of a new call."""
        self._running = False

    def begin_forward(self, timestep: object, context: Context | None) -> bool:
        """Note that a forward begins; return whether it is the first of a new call."""
        scheduler: Any = getattr(self.pipeline, "scheduler", None)
        timesteps = self._find_timesteps()
        if timesteps is not self._timesteps_by_hand:  # a pipeline call came later: it knows better
            self._by_hand = None
        new_call = not self._running or (
            timesteps is not None and timesteps is not self._timesteps
        )
        if new_call:
            self._running, self._timesteps, self._timestep = True, timesteps, None
            self._distinct = -1
            self.call += 1
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
        """Return the guidance branch of the present forward."""
        return context.name if context is not None else f"forward {self.forward_in_step}"

    def sigmas(self) -> Tensor | None:
        """Return the noise level of every step of this call, or None if the scheduler has none."""
        scheduler: Any = getattr(self.pipeline, "scheduler", None)
        sigmas = getattr(scheduler, "sigmas", None)
        if not isinstance(sigmas, Tensor) or self.steps is None or len(sigmas) < self.steps:
            return None
        return sigmas[: self.steps].detach().double().cpu()

    def _count(self, timestep: object) -> None:
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
        self.steps = len(timesteps) if isinstance(timesteps, Tensor) else None
        place = _place_in(timestep, timesteps)
        index = getattr(scheduler, "_step_index", None)
        if self._by_hand is not None:
            self.step, self.steps = self._by_hand
        elif context is not None and context.step_index is not None:
            self.step = context.step_index
            self.steps = context.num_inference_steps or self.steps
        elif place is not None:
            self.step = place
        elif isinstance(index, int):
            self.step = index
        else:
            self.step = self._distinct


def _place_in(timestep: object, timesteps: object) -> int | None:
    """Return the index of a timestep that is a view into a schedule, or None if it is not."""
    if not (isinstance(timestep, Tensor) and isinstance(timesteps, Tensor)):
        return None
    if timestep.dim() != 0 or timesteps.dim() != 1 or not len(timesteps):
        return None
    if timestep.untyped_storage().data_ptr() != timesteps.untyped_storage().data_ptr():
        return None
    return (timestep.storage_offset() - timesteps.storage_offset()) // max(1, timesteps.stride(0))
