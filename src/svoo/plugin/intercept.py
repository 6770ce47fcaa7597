"""Where the plug-in meets diffusers: every private name of it is used here and nowhere else.

An attention backend of our own is registered with diffusers' dispatcher and chosen for single
processor *instances*: the model's own processor goes on doing projections, norms and rope, and
cross-attention, which has other processors, never comes here. Processors that call torch's
attention themselves are met there instead. Compiled graphs call us as one opaque operator, which
is told its layer and where the run stands by tensors, so that one graph serves all layers and
sizes.
"""

from __future__ import annotations

import copy
import functools
import itertools
import threading
import weakref
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, Protocol

import torch
from diffusers.hooks import HookRegistry, ModelHook
from diffusers.hooks.hooks import StateManager
from diffusers.models.attention_dispatch import (
    AttentionBackendName,
    _AttentionBackendRegistry,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

Undo = Callable[[], None]
_HOOK = "svoo"


class Layer(Protocol):
    """A video self-attention that has been taken over."""

    dense_backend: Any

    @property
    def signals(self) -> Tensor:
        """What its forwards write for it before `attend` is called."""

    def begin(self, signals: Tensor) -> None:
        """Note where the forward stands that `attend` is about to be called in."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
    ) -> Tensor:
        """Attend over `[B, N, H, D]` as diffusers hands it over."""


Binding = tuple[Tensor, Tensor]  # the number of a layer, and the signals of its stage
# A compiled graph can hand over a tensor but no object: layers are found by number.
_layers: weakref.WeakValueDictionary[int, Layer] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class _Bound(threading.local):
    """The binding whose processor runs in this thread."""

    def __init__(self) -> None:
        self.binding: Binding | None = None


_bound = _Bound()


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
    binding = _bound.binding
    plain = not (is_causal or enable_gqa or dropout_p) and _parallel_config is None
    if binding is not None and plain and key.shape[1] == query.shape[1]:
        return _hand_over(binding, query, key, value, attn_mask, scale)
    return dense_attention(
        None if binding is None else _layers[int(binding[0])].dense_backend,
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


def _hand_over(
    binding: Binding,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float | None,
) -> Tensor:
    """Call the bound layer: at once, or through the operator if a graph is being traced."""
    call = _attend_in_graph if torch.compiler.is_compiling() else _call_layer
    return call(query, key, value, mask, scale, *binding)


def _call_layer(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float | None,
    number: Tensor,
    signals: Tensor,
) -> Tensor:
    layer = _layers[int(number)]
    layer.begin(signals)
    return layer.attend(query, key, value, mask, scale)


# A CUDA graph would freeze what the first replayed step decided; torch 2.7 has no such tag.
_UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)


@torch.library.custom_op(
    "svoo::attend", mutates_args=(), tags=() if _UNSAFE is None else (_UNSAFE,)
)
def _attend_in_graph(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float | None,
    number: Tensor,
    signals: Tensor,
) -> Tensor:
    return _call_layer(query, key, value, mask, scale, number, signals).contiguous()


@_attend_in_graph.register_fake
def _(query: Tensor, *_: object) -> Tensor:
    return query.new_empty(query.shape)


def _attend_heads_first(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 (torch's signature)
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> Tensor:
    """What processors that call torch's attention, `[B, H, N, D]`, find in its place."""
    binding = _bound.binding
    plain = not (is_causal or enable_gqa or dropout_p)
    if binding is None or not plain or key.shape[2] != query.shape[2]:
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    query, key, value = (side.transpose(1, 2) for side in (query, key, value))
    return _hand_over(binding, query, key, value, attn_mask, scale).transpose(1, 2)


def dense_attention(backend: Any, **arguments: Any) -> Tensor:
    """Run diffusers' own attention: the given backend, or the active one if None."""
    name = _AttentionBackendRegistry._active_backend if backend is None else backend
    accepted = _AttentionBackendRegistry._supported_arg_names[name]
    run = _AttentionBackendRegistry._backends[name]
    return run(**{key: value for key, value in arguments.items() if key in accepted})


def bind(attention: nn.Module, layer: Layer, *, calls_torch: bool = False) -> Undo:
    """Let the processor of a self-attention module call `layer.attend`; return what undoes it.

    `calls_torch`: it calls torch's attention, not diffusers' dispatcher. The processor is copied,
    because several modules may share one.
    """
    if _BACKEND not in _AttentionBackendRegistry._backends:
        _AttentionBackendRegistry.register(_BACKEND)(_attend)
    original: Any = attention.processor
    processor = copy.copy(original)
    backend = getattr(original, "_attention_backend", None)
    layer.dense_backend = AttentionBackendName.NATIVE if calls_torch else backend
    processor.__dict__.pop("_attention_backend", None)
    base: Any = type(original)
    processor.__class__ = _bound_class(base, calls_torch=calls_torch)
    number = next(_numbers)
    _layers[number] = layer
    processor._svoo_binding = torch.tensor(number, device="cpu"), layer.signals
    attention.processor = processor

    def undo() -> None:
        if attention.processor is processor:
            attention.processor = original
        # Somebody may have kept ours to put it back, as unfusing does: it becomes a plain one.
        processor.__class__ = base
        del processor._svoo_binding
        processor.__dict__.update(vars(original))
        if not calls_torch and layer.dense_backend is not backend:
            # set_attention_backend came meanwhile
            original._attention_backend = processor._attention_backend = layer.dense_backend

    return undo


def is_bound(attention: nn.Module) -> bool:
    """Return whether the processor of a self-attention module is still ours."""
    return hasattr(attention.processor, "_svoo_binding")


@functools.cache
def _bound_class(base: Any, *, calls_torch: bool) -> Any:
    """Return a subclass of a processor class whose calls come to us, with their binding."""
    base_call: Any = _redirect(base.__call__) if calls_torch else base.__call__

    @functools.wraps(base_call)  # diffusers filters keyword arguments by the signature
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = _bound.binding
        _bound.binding = self._svoo_binding
        try:
            return base_call(self, *args, **kwargs)
        finally:
            _bound.binding = before

    def set_backend(self: Any, backend: Any) -> None:
        _layers[int(self._svoo_binding[0])].dense_backend = backend

    members: dict[str, Any] = {
        "__call__": call,
        "__deepcopy__": functools.partialmethod(_copy_unbound, base),
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
    }
    if not calls_torch:
        # What the user chooses later becomes the dense fallback; ours stays.
        members["_attention_backend"] = property(lambda _self: _BACKEND, set_backend)
    return type(base.__name__, (base,), members)


def _redirect(function: Any) -> Any:
    """Return a copy of a function whose `F` has our attention; graphs cannot trace a mode."""
    ours = ModuleType(functional.__name__)
    vars(ours).update(vars(functional), scaled_dot_product_attention=_attend_heads_first)
    names = {
        name: ours if value is functional else value
        for name, value in function.__globals__.items()
        if name != "__name__"  # by which the compiler would find the module and its own F
    }
    parts = function.__name__, function.__defaults__, function.__closure__
    redirected = FunctionType(function.__code__, names, *parts)
    redirected.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(redirected, function)


def _copy_unbound(processor: Any, base: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy that is no longer ours: a copied pipeline is a plain one."""
    plain = base.__new__(base)
    kept = {name: value for name, value in vars(processor).items() if name != "_svoo_binding"}
    plain.__dict__.update(copy.deepcopy(kept, memo))
    return plain


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

    def __deepcopy__(self, _memo: dict[int, Any]) -> _ContextHook:
        return _ContextHook(lambda _context: None, lambda: None)  # a copied model is not ours

    def reset_state(self, module: nn.Module) -> nn.Module:
        self.state_manager.reset()
        self._end_call()
        return module


def listen(
    transformer: nn.Module,
    blocks: nn.Module,
    receive: Callable[[Any], None],
    end_call: Callable[[], None],
) -> Undo:
    """Tell `receive` every cache context of a transformer and call `end_call` when a pipeline
    call ends.

    The hook sits on the list of its `blocks`, which hears of both and is never called itself: a
    hook wraps its module's forward, and a deep copy of a wrapped one would run the original.
    """
    before = dict(blocks.__dict__)
    had_own = "_diffusers_hook" in transformer.__dict__
    own = HookRegistry.check_if_exists_or_initialize(transformer)
    registry = HookRegistry.check_if_exists_or_initialize(blocks)
    registry.remove_hook(_HOOK, recurse=False)  # one that a deep copy brought along
    registry.register_hook(_ContextHook(receive, end_call), _HOOK)
    own.invalidate_child_registries_cache()

    def undo() -> None:
        registry.remove_hook(_HOOK, recurse=False)
        for name in ("forward", "_diffusers_hook"):
            if name not in before and not registry.hooks:
                blocks.__dict__.pop(name, None)
        own.invalidate_child_registries_cache()
        if not had_own and not own.hooks:
            del transformer.__dict__["_diffusers_hook"]

    return undo
