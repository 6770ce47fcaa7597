"""Hears what a diffusers pipeline says of a forward: its cache context, and the end of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diffusers.hooks import HookRegistry, ModelHook
from diffusers.hooks.hooks import StateManager
from torch import nn

_HOOK = "svoo"


class _ContextManager(StateManager):
    """Passes diffusers' cache context on to `receive`; keeps no state."""

    def __init__(self, receive: Callable[[Any], None]) -> None:
        super().__init__(object)
        self._receive = receive

    def set_context(self, context: object) -> None:
        self._receive(context)

    def reset(self, *_args: object, **_kwargs: object) -> None:
        self._receive(None)


class _ContextHook(ModelHook):
    """Changes nothing: it hears the cache context, and the reset at the end of a pipeline call."""

    _is_stateful = True

    def __init__(self, receive: Callable[[Any], None], end_call: Callable[[], None]) -> None:
        super().__init__()
        self.state_manager = _ContextManager(receive)
        self._end_call = end_call

    def __deepcopy__(self, _memo: dict[int, Any]) -> _ContextHook:
        return _ContextHook(lambda _context: None, lambda: None)  # svoo is not applied to a copy

    def reset_state(self, module: nn.Module) -> nn.Module:
        self.state_manager.reset()
        self._end_call()
        return module


def listen(
    transformer: nn.Module,
    blocks: nn.Module,
    receive: Callable[[Any], None],
    end_call: Callable[[], None],
) -> Callable[[], None]:
    """Pass each cache context of a transformer to `receive`; call `end_call` at a pipeline's end.

    A hook wraps the forward of its module, and a deep copy of a wrapped transformer would run the
    original's forward. So the hook is on the list `blocks`: it hears the same, and has no forward.
    """
    before = dict(blocks.__dict__)
    had_own = "_diffusers_hook" in transformer.__dict__
    own = HookRegistry.check_if_exists_or_initialize(transformer)
    registry = HookRegistry.check_if_exists_or_initialize(blocks)
    registry.remove_hook(_HOOK, recurse=False)  # left over from a deep copy
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
