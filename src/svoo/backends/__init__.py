"""The backends in order of preference, and the choice among them."""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor

from svoo.backends.base import Attention, Backend
from svoo.backends.blocked import BlockedBackend
from svoo.backends.cpp import CppBackend
from svoo.backends.flashinfer import FlashInferBackend
from svoo.backends.reference import ReferenceBackend
from svoo.backends.triton import TritonBackend
from svoo.checks import check_tokens, default_scale
from svoo.errors import BackendUnavailableError, PlanError
from svoo.plan import BlockPlan

__all__ = ["BACKENDS", "Attention", "Backend", "resolve", "run_plan"]

BACKENDS: tuple[Backend, ...] = (
    TritonBackend(),
    FlashInferBackend(),
    CppBackend(),
    BlockedBackend(),
    ReferenceBackend(),
)


def resolve(name: str, query: Tensor, plan: BlockPlan) -> Backend:
    """Return the backend of a name, or for "auto" the first that can run; never another than the
    one asked for."""
    wanted = [backend for backend in BACKENDS if name in ("auto", backend.name)]
    if not wanted:
        known = ", ".join(("auto", *(backend.name for backend in BACKENDS)))
        raise BackendUnavailableError(f"no backend called {name!r}; there are {known}")
    reasons = []
    for backend in wanted:
        reason = backend.why_not(query, plan)
        if reason is None:
            return backend
        reasons.append(f"  {backend.name}: {reason}")
    raise BackendUnavailableError("\n".join(("no backend can run this call", *reasons)))


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
    """Attend from query `[B, H, N, D]` to key, value `[B, H, M, D]` as the plan says: output `[B,
    H, N, D]`.

    `return_lse=True` returns (output, log-sum-exp `[B, H, N]`).
    """
    check_tokens(query, key, value, finite=False)
    expected = (*query.shape[:2], query.shape[2], key.shape[2])
    got = (*plan.keep.shape[:2], plan.query_tokens, plan.key_tokens)
    if expected != got:
        raise PlanError(
            f"the tensors have batch, heads, query tokens, key tokens {list(expected)}, the "
            f"plan is for {list(got)}"
        )
    chosen = resolve(backend, query, plan)
    result = chosen.run(
        query, key, value, plan, scale=default_scale(query, scale), return_lse=return_lse
    )
    return result if return_lse else result.output
