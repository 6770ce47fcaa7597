"""Where the plug-in meets diffusers: its private names are used here, and those of its context
parallelism in `parallel`.

We register an attention backend of our own with diffusers' dispatcher and choose it for single
processor *instances*. The model's own processor still does projections, norms and rope.
Cross-attention has other processors, so it never comes here. Some processors call torch's
attention instead of the dispatcher: for these we replace torch's function. A compiled graph calls
us as one opaque operator. Tensors tell it its layer and the state of the forward, so that one
graph serves all layers and video sizes.
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
from diffusers.models.attention_dispatch import (
    AttentionBackendName,
    _AttentionBackendRegistry,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from svoo.plugin.parallel import attend_on_ranks

Undo = Callable[[], None]


class Layer(Protocol):
    """A video self-attention whose calls come to us."""

    dense_backend: Any

    @property
    def signals(self) -> Tensor:
        """Numbers that each forward writes before `attend` is called."""

    def begin(self, signals: Tensor) -> None:
        """Read the signals of the present forward; called before each `attend`."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
    ) -> Tensor:
        """Attend from query to key, value `[B, N, H, D]`, diffusers' order of axes."""

    def bypass(self, processor: type) -> None:
        """Note that a processor has attended by itself, past us."""


Binding = tuple[Tensor, Tensor]  # the number of a layer, and the signals of its stage
# A compiled graph can pass a tensor but not an object, so layers are looked up by number.
_layers: weakref.WeakValueDictionary[int, Layer] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class _Bound(threading.local):
    """The binding of the processor that is running in this thread, or None; and whether it has
    called attention."""

    def __init__(self) -> None:
        self.binding: Binding | None = None
        self.reached = False


_bound = _Bound()


def _make_backend_name() -> AttentionBackendName:
    """Return a name that is not in diffusers' list, so that cross-attention cannot choose it."""
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
    """Our backend, `[B, N, H, D]`: hands video self-attention to its layer, all else back."""
    binding = _bound.binding
    _bound.reached = True
    plain = not (is_causal or enable_gqa or dropout_p)
    if binding is not None and plain and key.shape[1] == query.shape[1]:
        hand_over = functools.partial(_hand_over, binding)
        if _parallel_config is None:
            return hand_over(query, key, value, attn_mask, scale)
        arguments = query, key, value, attn_mask, scale
        return attend_on_ranks(hand_over, *arguments, _parallel_config)
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
    """Call the bound layer: directly, or through the operator while a graph is traced. Under
    autocast tokens are cast, as torch's attention casts them."""
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        query, key, value = (side.to(dtype) for side in (query, key, value))
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


# A CUDA graph would repeat what the first step decided; torch 2.7 has no such tag.
_TAGS = tuple(tag for tag in (getattr(torch.Tag, "cudagraph_unsafe", None),) if tag is not None)


@torch.library.custom_op("svoo::attend", mutates_args=(), tags=_TAGS)
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
    """Stand in for torch's attention (`[B, H, N, D]`) in processors that call it directly."""
    binding = _bound.binding
    _bound.reached = True
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
    """Run one of diffusers' own attention backends; None: the one that is active there."""
    name = _AttentionBackendRegistry._active_backend if backend is None else backend
    accepted = _AttentionBackendRegistry._supported_arg_names[name]
    run = _AttentionBackendRegistry._backends[name]
    return run(**{key: value for key, value in arguments.items() if key in accepted})


def bind(attention: nn.Module, layer: Layer, *, calls_torch: bool = False) -> Undo:
    """Make the processor of a self-attention module call `layer.attend`; return the undo function.

    `calls_torch`: it calls torch's attention, not the dispatcher. Several modules may share a
    processor, so we change a copy of it.
    """
    if _BACKEND not in _AttentionBackendRegistry._backends:
        register = _AttentionBackendRegistry.register(_BACKEND, supports_context_parallel=True)
        register(_attend)
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
        # Others may put our copy back later, as unfusing does: make it a plain processor again.
        processor.__class__ = base
        del processor._svoo_binding
        spread = processor.__dict__.get("_parallel_config")
        processor.__dict__.update(vars(original))
        if not calls_torch and layer.dense_backend is not backend:
            # the user called set_attention_backend while we were applied
            original._attention_backend = processor._attention_backend = layer.dense_backend
        if spread is not None:
            # the user called enable_parallelism while we were applied
            original._parallel_config = processor._parallel_config = spread

    return undo


def is_bound(attention: nn.Module) -> bool:
    """Return whether the processor of a self-attention module is still ours."""
    return hasattr(attention.processor, "_svoo_binding")


@functools.cache
def _bound_class(base: Any, *, calls_torch: bool) -> Any:
    """Return a subclass of a processor class that sets `_bound` while it runs."""
    base_call: Any = _redirect(base.__call__) if calls_torch else base.__call__

    @functools.wraps(base_call)  # diffusers filters keyword arguments by the signature
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = _bound.binding
        _bound.binding, _bound.reached = self._svoo_binding, False
        try:
            output = base_call(self, *args, **kwargs)
        finally:
            _bound.binding = before
        if not (_bound.reached or torch.compiler.is_compiling()):
            number, signals = self._svoo_binding
            layer = _layers[int(number)]
            layer.begin(signals)
            layer.bypass(base)
        return output

    def set_backend(self: Any, backend: Any) -> None:
        _layers[int(self._svoo_binding[0])].dense_backend = backend

    members: dict[str, Any] = {
        "__call__": call,
        "__deepcopy__": functools.partialmethod(_copy_unbound, base),
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
    }
    if not calls_torch:
        # A backend that the user chooses later runs the dense calls; ours stays the entrance.
        members["_attention_backend"] = property(lambda _self: _BACKEND, set_backend)
    return type(base.__name__, (base,), members)


def _redirect(function: Any) -> Any:
    """Return a copy of a function whose `F` has our attention; graphs cannot trace torch modes."""
    ours = ModuleType(functional.__name__)
    vars(ours).update(vars(functional), scaled_dot_product_attention=_attend_heads_first)
    names = {
        name: ours if value is functional else value
        for name, value in function.__globals__.items()
        if name != "__name__"  # with it the compiler would find the original module
    }
    parts = function.__name__, function.__defaults__, function.__closure__
    redirected = FunctionType(function.__code__, names, *parts)
    redirected.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(redirected, function)


def _copy_unbound(processor: Any, base: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy as a plain processor: svoo is not applied to a copied pipeline."""
    plain = base.__new__(base)
    kept = {name: value for name, value in vars(processor).items() if name != "_svoo_binding"}
    plain.__dict__.update(copy.deepcopy(kept, memo))
    return plain
