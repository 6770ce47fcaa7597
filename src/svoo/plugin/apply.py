"""`apply`: make a pipeline sparse with one line; `Handle`: look at it, and undo it."""

from __future__ import annotations

import inspect
import warnings
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from svoo.backends import check_name
from svoo.catalogue import Model, models
from svoo.errors import ConfigError
from svoo.methods.svoo.config import SVOOConfig
from svoo.plugin import intercept
from svoo.plugin.adapters import find_attentions, find_transformers
from svoo.plugin.clock import Clock
from svoo.plugin.runtime import Layer, Observer, Runtime, Stage
from svoo.plugin.stats import summarise
from svoo.profiles.find import find_profile
from svoo.profiles.profile import PROFILE_MASS, Profile

_HANDLE = "_svoo_handle"  # on a transformer while svoo is applied to it


def apply(
    target: object,
    config: SVOOConfig | None = None,
    profile: Profile | Literal["auto"] | None = "auto",
    method: Literal["svoo", "dense"] = "svoo",
) -> Handle:
    """Make the video self-attention of a diffusers pipeline (or a bare transformer) sparse.

    `config=None` takes the preset of a recognised model, else `SVOOConfig()`. `profile="auto"`
    takes a stored profile of the model or measures budgets in the last dense warm-up step; None
    lets mass alone decide. `method="dense"` changes nothing but keeps the statistics. Applying
    again replaces.
    """
    if method not in ("svoo", "dense"):
        raise ConfigError(f"method must be svoo or dense, got {method!r}")
    found = find_transformers(target)
    stages = [
        Stage(index, transformer, adapter) for index, (transformer, adapter) in enumerate(found)
    ]
    model = recognise(target)
    if config is None:
        config = SVOOConfig.for_model(model.name) if model else SVOOConfig()
    check_name(config.backend)  # now, not after the dense steps
    attentions = [find_attentions(stage.transformer, stage.adapter) for stage in stages]
    layers = len(attentions[0])
    heads = _count_heads(stages[0].transformer)
    stored = find_profile(model, layers, heads) if profile == "auto" else profile
    if isinstance(stored, Profile):
        stored.check_fits(layers, heads)
        stored.at_mass(PROFILE_MASS)
        stored.check_stages(len(stages))
        measured = stored.provenance.get("model")
        if model is not None and measured not in (None, model.name):
            text = f"the profile was measured on {measured}, this pipeline is {model.name}"
            warnings.warn(text, stacklevel=3)
    clock = Clock(None if isinstance(target, nn.Module) else target)
    runtime = Runtime(
        clock,
        stages,
        config,
        stored if isinstance(stored, Profile) else None,
        measure=profile == "auto",
        dense=method == "dense",
    )
    for transformer, _ in found:
        earlier = transformer.__dict__.get(_HANDLE)
        if earlier is not None:
            earlier.remove()
    with ExitStack() as undo:  # rolls back if anything below fails
        for stage, modules in zip(stages, attentions, strict=True):
            _take_over(runtime, stage, modules, undo)
        handle = Handle(runtime, method)
        for stage in stages:
            stage.transformer.__dict__[_HANDLE] = handle
            undo.callback(stage.transformer.__dict__.pop, _HANDLE, None)
        handle.keep(undo.pop_all())
    return handle


def _take_over(runtime: Runtime, stage: Stage, modules: list[nn.Module], undo: ExitStack) -> None:
    bindings = undo.enter_context(ExitStack())

    def bind(attention: nn.Module, layer: Layer) -> None:
        bindings.callback(intercept.bind(attention, layer, calls_torch=stage.adapter.calls_torch))

    for index, attention in enumerate(modules):
        stage.layers.append(Layer(runtime, stage, index))
        bind(attention, stage.layers[index])
    names = list(inspect.signature(type(stage.transformer).forward).parameters)[1:]

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module is not stage.transformer:  # a deep copy carries this hook along
            return
        arguments = dict(zip(names, args, strict=False)) | kwargs
        grid = stage.adapter.grid(stage.transformer, arguments)
        stage.place[0] += 1
        for place, length in enumerate(grid or (0, 0, 0), start=1):
            stage.place[place] = length
        if torch.compiler.is_compiling():  # the first layer begins the forward
            return
        stage.ticks = int(stage.place[0])
        runtime.begin_forward(stage, grid, arguments.get("timestep"))
        for attention, layer in zip(modules, stage.layers, strict=True):
            if not intercept.is_bound(attention):
                bind(attention, layer)
                runtime.note("processors were replaced after svoo was applied: it took them over")

    undo.callback(stage.transformer.register_forward_pre_hook(before, with_kwargs=True).remove)

    def receive(context: Any) -> None:  # noqa: ANN401 (diffusers' own class)
        stage.context = context

    blocks = getattr(stage.transformer, stage.adapter.sites[0][0])
    undo.callback(intercept.listen(stage.transformer, blocks, receive, runtime.clock.end_call))


class Handle:
    """An applied pipeline: statistics while it lasts, and the way back."""

    def __init__(self, runtime: Runtime, method: str) -> None:
        """Wrap a runtime."""
        self._runtime = runtime
        self._method = method
        self._undo = ExitStack()

    def keep(self, undo: ExitStack) -> None:
        """Take over what undoes the application."""
        self._undo = undo

    def remove(self) -> None:
        """Give the pipeline back exactly as it was; harmless if done before."""
        self._undo.close()
        self._runtime.method.reset()

    def set_step(self, step: int, num_steps: int) -> None:
        """Tell the step of the forwards to come, where no pipeline does.

        A smaller step, or another number of steps, begins a new video; the same step again is
        another forward of that step, such as the other branch of guidance.
        """
        if not 0 <= step < num_steps:
            raise ConfigError(f"step must be in 0 .. {num_steps - 1}, got {step}")
        self._runtime.clock.set_by_hand(step, num_steps)

    def observe(self, observer: Observer | None) -> None:
        """Show every dense call to `observer(call, query, key)`, `[B, H, N, D]` each, before it
        runs."""
        self._runtime.observer = observer

    def sigmas(self) -> Tensor | None:
        """Return the noise level of every step of the latest call, or None if that is not
        known."""
        return self._runtime.clock.sigmas()

    def stats(self) -> dict[str, Any]:
        """Return what happened so far as plain data; waits for the device."""
        runtime = self._runtime
        layers = [
            {"stage": stage.index, "layer": layer.index, **layer.stats.as_data()}
            for stage in runtime.stages
            for layer in stage.layers
        ]
        sparse = sum(row["sparse_calls"] for row in layers)
        density = None
        if sparse:
            done = [row for row in layers if row["sparse_calls"]]
            density = sum(row["density"] * row["sparse_calls"] for row in done) / sparse
        phases = layers[0]["seconds"] if layers else {}
        return {
            "method": self._method,
            "backend": runtime.config.backend,
            "calls": runtime.clock.call,
            "steps": runtime.clock.steps,
            "budgets": self._say_budgets(),
            "density": density,
            "layers": layers,
            "seconds": {name: sum(row["seconds"][name] for row in layers) for name in phases},
            "state_bytes": runtime.state_bytes,
            "notes": list(runtime.notes),
        }

    def _say_budgets(self) -> str:
        runtime = self._runtime
        if runtime.profile is not None:
            facts = " ".join(f"{key}={fact}" for key, fact in runtime.profile.provenance.items())
            return f"from a profile ({facts or 'no provenance'})"
        return "measured in the warm-up" if runtime.measure else "none: mass alone decides"

    def summary(self) -> str:
        """Return the statistics as a text table."""
        return summarise(self.stats())

    def __deepcopy__(self, _memo: dict[int, Any]) -> None:
        """Leave nothing in a copied transformer: it is a plain one."""

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
    """Return whether a transformer is svoo's at the moment."""
    return transformer.__dict__.get(_HANDLE) is not None


def recognise(target: object) -> Model | None:
    """Return the catalogue's model that a pipeline is, by hub id, else by class, layers and
    heads."""
    if isinstance(target, nn.Module):
        return None
    config: Any = getattr(target, "config", {})
    name = dict(config).get("_name_or_path", "") if config else ""
    sizes = [
        (len(find_attentions(transformer, adapter)), _count_heads(transformer))
        for transformer, adapter in find_transformers(target)
    ]
    kinds = {base.__name__ for base in type(target).__mro__}
    for model in models():
        if name == model.hub_id:
            return model
        if model.pipeline in kinds and sizes == [(model.layers, model.heads)] * model.stages:
            return model
    return None


def _count_heads(transformer: nn.Module) -> int:
    config: Any = transformer.config
    return int(config.num_attention_heads)
