"""Modes that refuse what a device, or a setting of the user, would refuse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class NoFloat64(TorchDispatchMode):
    """Stands for a device without float64: no operation on others than scalars may make it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.dtype == torch.float64 and leaf.ndim:
                raise TypeError(f"{func} makes float64 {list(leaf.shape)}")
        return result


class OnlyDeterministic(TorchDispatchMode):
    """Stands for `torch.use_deterministic_algorithms(True)` on CUDA, where a running sum of
    floating-point numbers raises, and the k-th smallest number."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = str(func)
        if name.startswith(("aten.cumsum", "aten.cumprod")) and args[0].is_floating_point():
            raise RuntimeError(f"{func} of {args[0].dtype} is not deterministic on CUDA")
        if name.startswith(("aten.kthvalue", "aten.median")):
            raise RuntimeError(f"{func} is not deterministic on CUDA")
        return func(*args, **(kwargs or {}))
