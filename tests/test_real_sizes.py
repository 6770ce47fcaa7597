"""A call at the sizes of real models, on tensors that hold no numbers: what it allocates, how many
operations it starts, and that it never waits for the device."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from svoo import SVOOConfig
from svoo.core import clustering, validate
from svoo.core.random import seeded
from svoo.kernels.triton.launch import Launch
from svoo.kernels.triton.sparse import sparse_attention
from svoo.methods.base import Call
from svoo.methods.svoo.method import plan_call

WAITING = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "equal")


class Counter(TorchDispatchMode):
    """Counts operations and the largest result, and refuses what would wait for the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = str(func)
        here = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_device = any(tensor.device.type == "meta" for tensor in here)
        if on_device and any(word in name for word in WAITING):
            raise AssertionError(f"{name} waits for the device")
        result = func(*args, **(kwargs or {}))
        self.operations += on_device
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.device.type == "meta":
                self.largest = max(self.largest, leaf.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize(
    ("heads", "tokens"), [(40, 75_600), (24, 118_800)], ids=["Wan 14B", "HunyuanVideo"]
)
def test_a_call_neither_waits_nor_holds_much(
    monkeypatch: pytest.MonkeyPatch, heads: int, tokens: int
) -> None:
    launched: list[str] = []
    monkeypatch.setattr(clustering, "why_no_kernels", lambda _tokens: None)
    monkeypatch.setattr(validate, "check_tensor", lambda _name, _tensor: None)  # refuses "meta"
    monkeypatch.setattr(Launch, "run", lambda self: launched.append(self.kernel.__name__))
    side = torch.empty(1, tokens, heads, 128, dtype=torch.bfloat16, device="meta")
    query = side.transpose(1, 2)
    config = SVOOConfig.paper().always_sparse()
    budgets = torch.empty(heads, device="meta")
    with Counter() as counter:
        call = Call(0, 0, generator=seeded())
        plan = plan_call(query, query, config, call, budgets=budgets)
        planning = counter.operations
        sparse_attention(
            query,
            query,
            query,
            query_order=plan.query_order,
            key_order=plan.key_order,
            query_sizes=plan.query_sizes,
            key_sizes=plan.key_sizes,
            keep=plan.keep,
            terms=plan.terms,
            scale=0.1,
            return_lse=False,
        )
    assert launched[-1] == "_attend" and launched.count("_assign") == 2 * config.iterations
    assert planning <= 300 and counter.operations - planning <= 120, counter.operations
    assert counter.largest <= side.untyped_storage().nbytes()  # nothing larger than the tokens
