"""Counts what a call would start on a device and the memory it would hold, on tensors without
numbers."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITING = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "equal", "linalg_eigh")
FREE = ("aten._unsafe_view", "aten.empty", "aten.detach")


class Counter(TorchDispatchMode):
    """Counts operations that start something on the device "meta", follows the bytes that it
    holds, and refuses what would wait for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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
        result = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if not any(tensor.device.type == "meta" for tensor in (*given, *made)):
            return result
        if any(word in name for word in WAITING):
            raise AssertionError(f"{name} waits for the device")
        self.sorts += name.startswith("aten.sort")
        self.operations += not (func.is_view or name.startswith(FREE))
        known = {tensor.untyped_storage()._cdata for tensor in given}
        for tensor in made:
            storage = tensor.untyped_storage()
            if storage._cdata not in known:
                self._held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self.largest = max(self.largest, storage.nbytes())
        self.peak = max(self.peak, self.held)
        return result
