"""The backends in order of preference, and the choice among them."""

from __future__ import annotations

from typing import Literal, NamedTuple, overload

from torch import Tensor

from svoo.backends.base import Attention, Backend, Workspace
from svoo.backends.blocked import BlockedBackend
from svoo.backends.cpp import CppBackend
from svoo.backends.flashinfer import FlashInferBackend
from svoo.backends.reference import ReferenceBackend
from svoo.backends.triton import TritonBackend
from svoo.core.plan import BlockPlan
from svoo.core.validate import (
    check_tensor,
    check_tokens,
    check_type,
    default_scale,
    inference_only,
)
from svoo.errors import BackendUnavailableError, SlowBackendError

__all__ = [
    "BACKENDS",
    "Attended",
    "Attention",
    "Backend",
    "Workspace",
    "attend",
    "describe_backends",
    "resolve",
    "run_plan",
]

BACKENDS: tuple[Backend, ...] = (
    TritonBackend(),
    FlashInferBackend(),
    CppBackend(),
    CppBackend("bf16"),  # behind the one that "auto" takes
    BlockedBackend(),
    ReferenceBackend(),
)


def resolve(name: str, query: Tensor, plan: BlockPlan) -> Backend:
    """Return the backend of a name, or for "auto" the first that can run; never another than the
    one asked for."""
    check_name(name)
    for backend in BACKENDS:
        if name in ("auto", backend.name) and backend.why_not(query, plan) is None:
            if name == "auto" and query.device.type == "cuda" and backend.needs.device is None:
                raise SlowBackendError(_why_slow(query, plan))
            return backend
    reasons = [
        f"  {backend.name}: {backend.why_not(query, plan) or 'can run it'}" for backend in BACKENDS
    ]
    verdict = "no backend can run this call"
    if name != "auto":
        verdict = f"the {name} backend cannot run this call"
    raise BackendUnavailableError("\n".join((verdict, *reasons)))


def _why_slow(query: Tensor, plan: BlockPlan) -> str:
    """Say why "auto" takes nothing on a GPU: what is left starts thousands of small kernels."""
    reasons = (
        f"{backend.name} {backend.why_not(query, plan)}"
        for backend in BACKENDS
        if backend.needs.device == "cuda"
    )
    return (
        f"no backend is fast on this GPU: {'; '.join(reasons)}. Slow ones run if they are asked "
        'for by name, backend="blocked"'
    )


def check_name(name: str) -> None:
    """Refuse a name that no backend has."""
    known = ("auto", *(backend.name for backend in BACKENDS))
    if name not in known:
        raise BackendUnavailableError(f"no backend called {name!r}; there are {', '.join(known)}")


@overload
def run_plan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: BlockPlan,
    *,
    backend: str = ...,
    scale: float | None = ...,
    return_lse: Literal[False] = ...,
) -> Tensor: ...
@overload
def run_plan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: BlockPlan,
    *,
    backend: str = ...,
    scale: float | None = ...,
    return_lse: Literal[True],
) -> Attention: ...


def run_plan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: BlockPlan,
    *,
    backend: str = "auto",
    scale: float | None = None,
    return_lse: bool = False,
) -> Tensor | Attention:
    """Attend as the plan says, and return the output `[B, H, N, D]`.

    query is `[B, H, N, D]`, key and value `[B, H, M, D]`. `backend="auto"` takes the first that
    can run this call here; any other name runs or says why not. `scale` multiplies logits (None:
    one over the root of the head size). `return_lse=True` returns (output, log-sum-exp
    `[B, H, N]`). For inference: no gradients flow.
    """
    result = attend(query, key, value, plan, backend=backend, scale=scale, return_lse=return_lse)
    return Attention(result.output, result.lse) if return_lse else result.output


class Attended(NamedTuple):
    """As `Attention`, and the name of the backend that ran."""

    output: Tensor
    lse: Tensor | None
    backend: str


@inference_only
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: BlockPlan,
    *,
    backend: str = "auto",
    scale: float | None = None,
    return_lse: bool = False,
    workspace: Workspace | None = None,
) -> Attended:
    """Do what `run_plan` does, for those who count backends or keep memory between calls.

    Without a `workspace` all memory goes when the call ends.
    """
    check_tensor("value", value)
    check_tokens(query, key, value, finite=False)
    check_type("plan", plan, BlockPlan)
    plan.check_fits(query, key)
    chosen = resolve(backend, query, plan)
    result = chosen.run(
        query,
        key,
        value,
        plan,
        scale=default_scale(query, scale),
        return_lse=return_lse,
        workspace=Workspace() if workspace is None else workspace,
    )
    return Attended(result.output, result.lse, chosen.name)


def describe_backends() -> str:
    """Return the backends and what they need as a table in Markdown."""
    rows = {backend.name: backend.needs.describe() for backend in BACKENDS}
    columns = tuple(next(iter(rows.values())))
    lines = [("backend", *columns), ("---",) * (1 + len(columns))]
    lines += [(f"`{name}`", *needs.values()) for name, needs in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
