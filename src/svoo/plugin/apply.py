"""`apply` makes a pipeline sparse; its `Handle` has the statistics and undoes it."""

from __future__ import annotations

import inspect
import math
import warnings
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from svoo.backends import check_name
from svoo.catalogue import Model, models
from svoo.errors import ConfigError
from svoo.methods import find_method, uses_profile
from svoo.methods.base import Dense, MethodConfig
from svoo.methods.svoo.config import SVOOConfig
from svoo.plugin import intercept
from svoo.plugin.adapters import count_heads, find_attentions, find_transformers
from svoo.plugin.clock import Clock
from svoo.plugin.listen import listen
from svoo.plugin.parallel import (
    check_sequence,
    count_local_first_frames,
    find_split,
    offer_plan,
    refuse_xdit,
)
from svoo.plugin.runtime import Layer, Runtime, Stage
from svoo.profiles.find import find_profile
from svoo.profiles.profile import PROFILE_MASS, Profile
from svoo.session.finish import check_strict
from svoo.session.session import Observer
from svoo.session.stats import RunStats
from svoo.session.summary import summarise

_HANDLE = "_svoo_handle"  # on a transformer while svoo is applied to it
_UNUSED_PROFILE = (
    "the profile is not used, because {0} what is kept: budgets go with "
    'svoo.apply(pipe, "paper", profile) or svoo.SVOOConfig(mass=...)'
)


def apply(
    target: object,
    method: MethodConfig | str | None = None,
    profile: Profile | Path | str | None = "auto",
) -> Handle:
    """Make the video self-attention of a diffusers pipeline (or a bare transformer) sparse.

    `method` is a `MethodConfig` (one that you wrote, too), or a name of
    `svoo.available_methods()` with its settings for the recognised model; "paper" and "release"
    are presets of SVOO. None: SVOO's default mode for the recognised model, where videos too small
    to gain anything stay dense.

    `profile` is a `Profile`, or the path of one. "auto": a stored profile of the model, or if
    there is none the method measures for itself (default mode needs neither). None: no profile.

    Applying again replaces what was applied before.
    """
    found = find_transformers(target)
    stages = [
        Stage(index, transformer, adapter, find_attentions(transformer, adapter))
        for index, (transformer, adapter) in enumerate(found)
    ]
    for stage in stages:
        refuse_xdit(stage.attentions)
        find_split(stage.attentions[0], count_heads(stage.transformer))  # refuse it now
    model = recognise(target)
    config = _choose_method(method, model)
    check_name(config.backend)  # refuse it now, not after the dense steps
    auto = isinstance(profile, str) and profile == "auto"
    asks = uses_profile(config)
    stored = _choose_profile(None if auto and not asks else profile, stages, model)
    if stored is not None and not asks:
        decides = "the tolerance decides" if config.name == "svoo" else f"{config.name} chooses"
        warnings.warn(_UNUSED_PROFILE.format(decides), stacklevel=2)
    clock = Clock(None if isinstance(target, nn.Module) else target)
    runtime = Runtime(
        clock,
        stages,
        config,
        stored,
        calibrate=auto and asks,
        small_stay_dense=method is None,
    )
    for transformer, _ in found:
        earlier = transformer.__dict__.get(_HANDLE)
        if earlier is not None:
            earlier.remove()
    with ExitStack() as undo:  # rolls back if anything below fails
        for stage in stages:
            _take_over(runtime, stage, undo)
        handle = Handle(runtime)
        for stage in stages:
            stage.transformer.__dict__[_HANDLE] = handle
            undo.callback(stage.transformer.__dict__.pop, _HANDLE, None)
        handle.keep(undo.pop_all())
    return handle


def _choose_method(method: object, model: Model | None) -> MethodConfig:
    """Return the settings that `apply`'s `method` asks for."""
    name = model.name if model else None
    if method is None:
        return SVOOConfig.for_model(name) if name else SVOOConfig()
    if isinstance(method, str):
        return find_method(method, name)
    if isinstance(method, MethodConfig):
        return method
    raise ConfigError(
        "method must be a MethodConfig such as svoo.SVOOConfig(), a name of "
        f"svoo.available_methods(), or None, got {method!r}"
    )


def _choose_profile(profile: object, stages: list[Stage], model: Model | None) -> Profile | None:
    """Return the profile that `apply`'s `profile` asks for; refuse one that does not fit."""
    layers, heads = len(stages[0].attentions), count_heads(stages[0].transformer)
    if profile is None:
        return None
    if isinstance(profile, str) and profile == "auto":
        stored = find_profile(model, layers, heads)
        if stored is None:
            return None
    elif isinstance(profile, str | Path):
        stored = Profile.load(Path(profile))
    elif isinstance(profile, Profile):
        stored = profile
    else:
        raise ConfigError(
            f'profile must be a Profile, the path of one, "auto" or None, got {profile!r}'
        )
    stored.check_fits(layers, heads)
    stored.at_mass(PROFILE_MASS)
    stored.check_stages(len(stages))
    measured = stored.provenance.get("model")
    if model is not None and measured not in (None, model.name):
        text = f"the profile was measured on {measured}, this pipeline is {model.name}"
        warnings.warn(text, stacklevel=4)
    return stored


def _take_over(runtime: Runtime, stage: Stage, undo: ExitStack) -> None:
    """Bind the attentions of a transformer and listen to its forwards; `undo` learns the way
    back."""
    bindings = undo.enter_context(ExitStack())

    def bind(attention: nn.Module, layer: Layer) -> None:
        bindings.callback(intercept.bind(attention, layer, calls_torch=stage.adapter.calls_torch))

    for index, attention in enumerate(stage.attentions):
        stage.layers.append(Layer(runtime, stage, index))
        bind(attention, stage.layers[index])
    names = list(inspect.signature(type(stage.transformer).forward).parameters)[1:]

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module is not stage.transformer:  # a deep copy has this hook too
            return
        arguments = dict(zip(names, args, strict=False)) | kwargs
        grid = stage.adapter.grid(stage.transformer, arguments)
        batch = arguments["hidden_states"].shape[0]
        stage.signals[0] += 1
        for index, length in enumerate((*(grid or (0, 0, 0)), batch), start=1):
            stage.signals[index] = length
        if torch.compiler.is_compiling():  # the graph's first layer begins the forward
            return
        stage.forwards, stage.batch = int(stage.signals[0]), batch
        runtime.begin_forward(stage, grid, arguments.get("timestep"))
        if stage.split is not None:
            check_sequence(stage.split, stage.adapter, grid, arguments)
        for attention, layer in zip(stage.attentions, stage.layers, strict=True):
            if not intercept.is_bound(attention):
                bind(attention, layer)
                runtime.statistics.note(
                    "processors were replaced after svoo was applied: it took them over"
                )

    undo.callback(stage.transformer.register_forward_pre_hook(before, with_kwargs=True).remove)

    def receive(context: Any) -> None:  # noqa: ANN401 (diffusers' own class)
        stage.context = context

    undo.callback(offer_plan(stage.transformer))
    everyone = [
        block for name, _ in stage.adapter.sites for block in getattr(stage.transformer, name, ())
    ]
    spread = count_local_first_frames(everyone, lambda: (stage.split, math.prod(stage.grid or ())))
    undo.callback(spread)
    blocks = getattr(stage.transformer, stage.adapter.sites[0][0])
    undo.callback(listen(stage.transformer, blocks, receive, runtime.clock.end_call))


class Handle:
    """A pipeline that svoo is applied to: its statistics, and `remove`, which undoes it."""

    def __init__(self, runtime: Runtime) -> None:
        """Wrap a runtime."""
        self._runtime = runtime
        self._undo = ExitStack()
        self._applied = False

    def keep(self, undo: ExitStack) -> None:
        """Keep the functions that undo the application, for `remove`."""
        self._undo = undo
        self._applied = True

    def remove(self) -> None:
        """Make the pipeline exactly what it was; a second time does nothing."""
        self._undo.close()
        self._applied = False
        self._runtime.forget()

    def set_step(self, step: int, num_steps: int) -> None:
        """Set the step of the forwards to come, for a transformer that no pipeline drives.

        A smaller step, or another number of steps, begins a new video. The same step again means
        another forward of that step, such as the other guidance branch.
        """
        for name, number in (("step", step), ("num_steps", num_steps)):
            if not isinstance(number, int) or isinstance(number, bool):
                raise ConfigError(f"{name} must be a whole number, got {number!r}")
        if not 0 <= step < num_steps:
            raise ConfigError(f"step must be in 0 .. {num_steps - 1}, got {step}")
        self._runtime.clock.set_by_hand(step, num_steps)

    def observe(self, observer: Observer | None) -> None:
        """Call `observer(call, query, key)` before each dense call of the videos to come; query
        and key are `[B, H, N, D]`. None: no longer."""
        self._runtime.observer = observer

    def sigmas(self) -> Tensor | None:
        """Return the noise level of each step of the latest call, `[steps]`; None if it is not
        known."""
        return self._runtime.clock.sigmas()

    @property
    def config(self) -> MethodConfig:
        """The method and its settings."""
        return self._runtime.config

    def stats(self) -> RunStats:
        """Return what happened so far; waits for the device."""
        self._look_for_replaced()
        return self._runtime.stats()

    def _look_for_replaced(self) -> None:
        """Warn once if the pipeline has another transformer now: that one runs dense, which is an
        error under `strict=True`."""
        pipeline = self._runtime.clock.pipeline
        if pipeline is None or not self._applied:
            return
        now = [transformer for transformer, _ in find_transformers(pipeline)]
        if any(stage.transformer not in now for stage in self._runtime.stages):
            text = "the pipeline's transformer was replaced after svoo.apply: the new one is dense"
            check_strict(self.config, Dense(text), "the next video")
            if text not in self._runtime.statistics.notes:
                warnings.warn(f"{text}; apply again", stacklevel=4)
            self._runtime.statistics.note(text)

    def summary(self) -> str:
        """Return the statistics as a text table."""
        return summarise(self.stats())

    def __deepcopy__(self, _memo: dict[int, Any]) -> None:
        """Return None: svoo is not applied to a copied transformer."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def is_applied(transformer: nn.Module) -> bool:
    """Return whether svoo is applied to a transformer."""
    return transformer.__dict__.get(_HANDLE) is not None


def recognise(target: object) -> Model | None:
    """Return the model of the catalogue that a pipeline has, found by hub id, else by class,
    layers and heads; None if it is not there."""
    if isinstance(target, nn.Module):
        return None
    config: Any = getattr(target, "config", {})
    name = dict(config).get("_name_or_path", "") if config else ""
    sizes = [
        (len(find_attentions(transformer, adapter)), count_heads(transformer))
        for transformer, adapter in find_transformers(target)
    ]
    kinds = {base.__name__ for base in type(target).__mro__}
    for model in models():
        if name == model.hub_id:
            return model
        if model.pipeline in kinds and sizes == [(model.layers, model.heads)] * model.stages:
            return model
    return None
