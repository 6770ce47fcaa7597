"""Where the plug-in meets diffusers: every private name of it is used here and nowhere else.

An attention backend of our own is registered with diffusers' dispatcher and chosen for single
processor *instances*: the model's own processor goes on doing projections, norms and rope, and
cross-attention, which has other processors, never comes here.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol

from diffusers.hooks import HookRegistry, ModelHook
from diffusers.hooks.hooks import StateManager
from diffusers.models.attention_dispatch import (
    AttentionBackendName,
    _AttentionBackendRegistry,
)
from torch import Tensor, nn

Undo = Callable[[], None]
_bound = threading.local()  # the layer whose processor runs in this thread
_HOOK = "svoo"


class Layer(Protocol):
    """A video self-attention that has been taken over."""

    dense_backend: Any

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
    ) -> Tensor:
        """Attend over `[B, N, H, D]` as diffusers hands it over."""


def _make_backend_name() -> AttentionBackendName:
    """Return a member outside the enumeration, so that nobody can set it on cross-attention."""
    member = str.__new__(AttentionBackendName, "svoo")
    member._name_, member._value_ = "SVOO", "svoo"
    return member


_BACKEND = _make_backend_name()


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    _parallel_config: object = None,
) -> Tensor:
    """The backend that diffusers calls: hand video self-attention to its layer, all else to
    diffusers."""
    layer: Layer | None = getattr(_bound, "layer", None)
    plain = not (is_causal or enable_gqa or dropout_p) and _parallel_config is None
    if layer is not None and plain and key.shape[1] == query.shape[1]:
        return layer.attend(query, key, value, attn_mask, scale)
    return dense_attention(
        None if layer is None else layer.dense_backend,
        query=query,
        key=key,
        value=value,
        attn_mask=attn_mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
        _parallel_config=_parallel_config,
    )


def dense_attention(backend: Any, **arguments: Any) -> Tensor:
    """Run diffusers' own attention: the given backend, or the active one if None."""
    name = _AttentionBackendRegistry._active_backend if backend is None else backend
    accepted = _AttentionBackendRegistry._supported_arg_names[name]
    run = _AttentionBackendRegistry._backends[name]
    return run(**{key: value for key, value in arguments.items() if key in accepted})


def bind(attention: nn.Module, layer: Layer) -> Undo:
    """Let the processor of a self-attention module call `layer.attend`; return what undoes it.

    The processor is copied, because several modules may share one.
    """
    if _BACKEND not in _AttentionBackendRegistry._backends:
        _AttentionBackendRegistry.register(_BACKEND)(_attend)
    original: Any = attention.processor
    processor = copy.copy(original)
    layer.dense_backend = getattr(original, "_attention_backend", None)
    processor.__dict__.pop("_attention_backend", None)
    base: Any = type(original)
    processor.__class__ = _bound_class(base)
    processor._svoo_layer = layer
    attention.processor = processor

    def undo() -> None:
        attention.processor = original
        if getattr(original, "_attention_backend", None) is not layer.dense_backend:
            original._attention_backend = (
                layer.dense_backend
            )  # set_attention_backend came meanwhile

    return undo


@functools.cache
def _bound_class(base: Any) -> Any:
    """Return a subclass of a processor class whose calls make their layer known to `_attend`."""
    base_call: Any = base.__call__

    @functools.wraps(base_call)  # diffusers filters keyword arguments by the signature
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = getattr(_bound, "layer", None)
        _bound.layer = self._svoo_layer
        try:
            return base_call(self, *args, **kwargs)
        finally:
            _bound.layer = before

    def set_backend(self: Any, backend: Any) -> None:
        self._svoo_layer.dense_backend = backend

    members = {
        "__call__": call,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        # What the user chooses later becomes the dense fallback; ours stays.
        "_attention_backend": property(lambda _self: _BACKEND, set_backend),
    }
    return type(base.__name__, (base,), members)


class _ContextManager(StateManager):
    """Receives diffusers' cache context instead of keeping a state for it."""

    def __init__(self, receive: Callable[[Any], None]) -> None:
        super().__init__(object)
        self._receive = receive

    def set_context(self, context: Any) -> None:
        self._receive(context)

    def reset(self, *_args: Any, **_kwargs: Any) -> None:
        self._receive(None)


class _ContextHook(ModelHook):
    """A hook that only listens: to the cache context, and to the reset at the end of a
    pipeline call."""

    _is_stateful = True

    def __init__(self, receive: Callable[[Any], None], end_call: Callable[[], None]) -> None:
        super().__init__()
        self.state_manager = _ContextManager(receive)
        self._end_call = end_call

    def reset_state(self, module: nn.Module) -> nn.Module:
        self.state_manager.reset()
        self._end_call()
        return module


def listen(
    transformer: nn.Module, receive: Callable[[Any], None], end_call: Callable[[], None]
) -> Undo:
    """Tell `receive` every cache context of a transformer and call `end_call` when a pipeline
    call ends."""
    had_registry = "_diffusers_hook" in transformer.__dict__
    registry = HookRegistry.check_if_exists_or_initialize(transformer)
    registry.register_hook(_ContextHook(receive, end_call), _HOOK)
    registry.invalidate_child_registries_cache()

    def undo() -> None:
        registry.remove_hook(_HOOK, recurse=False)
        registry.invalidate_child_registries_cache()
        forward = transformer.__dict__.get("forward")
        if forward is not None and getattr(forward, "__func__", None) is type(transformer).forward:
            del transformer.__dict__["forward"]  # diffusers leaves the bound method behind
        if not had_registry and not registry.hooks:
            del transformer.__dict__["_diffusers_hook"]

    return undo
