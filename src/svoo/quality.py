"""What a plan costs: the attention mass it keeps and how far its output is from dense
attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo.backends import run_plan
from svoo.checks import accumulation_dtype, check_tokens, default_scale, seeded
from svoo.errors import ShapeError
from svoo.plan import BlockPlan

_CHUNK_ELEMENTS = 1 << 22  # logits held at a time


@dataclass(frozen=True)
class Quality:
    """A plan against dense attention, each `[B, H]`.

    `error` is |sparse - dense| / |dense| of the plan as it is; `error_uncompensated` with its
    compensation taken out.
    """

    density: Tensor
    recall: Tensor
    error: Tensor
    error_uncompensated: Tensor


def recall(
    query: Tensor,
    key: Tensor,
    plan: BlockPlan,
    *,
    rows: int | None = None,
    scale: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the attention mass that falls on kept pairs, the mean over query rows: `[B, H]`.

    Compensated pairs do not count as kept. `rows` samples query rows, the same ones for every
    head. Rows go in chunks.
    """
    check_tokens(query, key, finite=False)
    tokens, keys = query.shape[2], key.shape[2]
    if rows is not None and not 1 <= rows <= tokens:
        raise ShapeError(f"rows must be between 1 and the {tokens} query tokens, got {rows}")
    picked = torch.arange(tokens, device=query.device)
    if rows is not None:
        picked = torch.randperm(tokens, generator=generator or seeded())[:rows].to(query.device)
    dtype, factor = accumulation_dtype(query), default_scale(query, scale)
    query_blocks, key_blocks = plan.query_blocks(), plan.key_blocks()
    keys_transposed = key.to(dtype).transpose(2, 3)
    total = torch.zeros(query.shape[:2], dtype=dtype, device=query.device)
    for part in picked.split(max(1, _CHUNK_ELEMENTS // (query.shape[0] * query.shape[1] * keys))):
        weights = (query[:, :, part].to(dtype) @ keys_transposed * factor).softmax(dim=-1)
        blocks = query_blocks[:, :, part].unsqueeze(-1)
        kept = plan.keep.gather(2, blocks.expand(*blocks.shape[:3], plan.keep.shape[3]))
        columns = key_blocks.unsqueeze(2).expand(*weights.shape)
        total += (weights * kept.gather(3, columns)).sum(dim=(2, 3))
    return total / len(picked)


def output_error(output: Tensor, dense: Tensor) -> Tensor:
    """Return |output - dense| / |dense| over tokens and channels of `[B, H, N, D]`: `[B, H]`."""
    dtype = accumulation_dtype(dense)
    difference = (output.to(dtype) - dense.to(dtype)).square().sum(dim=(2, 3))
    return (difference / dense.to(dtype).square().sum(dim=(2, 3))).sqrt()


def assess(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: BlockPlan,
    *,
    backend: str = "auto",
    scale: float | None = None,
    rows: int | None = None,
) -> Quality:
    """Run a plan with and without its compensation and compare both with dense attention."""
    factor = default_scale(query, scale)
    dense = scaled_dot_product_attention(query, key, value, scale=factor)
    error = output_error(run_plan(query, key, value, plan, backend=backend, scale=factor), dense)
    plain = error
    if plan.compensate is not None:
        bare = replace(plan, compensate=None, check=False)
        plain = output_error(
            run_plan(query, key, value, bare, backend=backend, scale=factor), dense
        )
    kept = recall(query, key, plan, rows=rows, scale=factor)
    return Quality(plan.density(), kept, error, plain)
