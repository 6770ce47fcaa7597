"""Counts what a call would start on a device and the memory it would hold, on tensors without
numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITING = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "equal", "linalg_eigh")
FREE = ("aten._unsafe_view", "aten.empty", "aten.detach")


class Counter(TorchDispatchMode):
    """Counts operations that start something on the device "meta", follows the bytes that it
    holds, and refuses what would wait for it; with `may_wait` it counts that too, and whoever
    waits is given ones."""

    def __init__(self, *, may_wait: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.may_wait = may_wait
        self.waits = 0
        self.operations = 0
        self.sorts = 0
        self.largest = 0
        self.peak = 0
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}

    @property
    def held(self) -> int:
        """Bytes made since the start that are still there."""
        self._held = {key: pair for key, pair in self._held.items() if not pair[0].expired()}
        return sum(size for _, size in self._held.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = str(func)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if self.may_wait and _is_read(name, given, kwargs):
            self.waits += 1
            return 1 if "scalar" in name else torch.ones_like(given[0], **kwargs)
        result = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if not any(tensor.device.type == "meta" for tensor in (*given, *made)):
            return result
        if any(word in name for word in WAITING):
            raise AssertionError(f"{name} waits for the device")
        self.sorts += name.startswith(("aten.sort", "aten.argsort"))
        self.operations += not (func.is_view or name.startswith(FREE))
        known = {tensor.untyped_storage()._cdata for tensor in given}
        for tensor in made:
            storage = tensor.untyped_storage()
            if storage._cdata not in known:
                self._held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self.largest = max(self.largest, storage.nbytes())
        self.peak = max(self.peak, self.held)
        return result


def _is_read(name: str, given: list[Tensor], kwargs: Any) -> bool:
    """Return whether numbers come from the device "meta" to the host."""
    if not any(tensor.device.type == "meta" for tensor in given):
        return False
    to = torch.device((kwargs or {}).get("device") or "meta")
    return "_local_scalar_dense" in name or ("_to_copy" in name and to.type != "meta")
