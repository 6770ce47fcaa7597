"""Sparse attention from q, k, v: the whole method, for those who have no pipeline to plug into."""

from __future__ import annotations

import torch
from torch import Tensor

from svoo.backends import run_plan
from svoo.core.layout import VideoLayout
from svoo.core.validate import check_budgets, check_tokens, inference_only
from svoo.methods.svoo.config import SVOOConfig
from svoo.methods.svoo.method import LabelState, make_plan


@inference_only
def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    config: SVOOConfig,
    *,
    budgets: Tensor | None = None,
    layout: VideoLayout | None = None,
    state: LabelState | None = None,
    scale: float | None = None,
    generator: torch.Generator | None = None,
    check: bool = True,
) -> Tensor:
    """Attend from query `[B, H, N, D]` to key, value `[B, H, M, D]`, computing only the blocks
    that matter.

    `budgets` (`[H]` or `[B, H]`) are kept fractions from a profile; None lets mass alone decide.
    `layout` says where text and padding are. `state` carries labels to later calls of the same
    layer: set `state.step` before each. `check=False` skips the checks that wait for the device.
    For inference: no gradients flow.
    """
    check_tokens(query, key, value, finite=check)
    if layout is not None:
        for tokens in (query, key):
            layout.check(tokens.shape[0], tokens.shape[2], values=check)
    if budgets is not None:
        check_budgets(budgets, *query.shape[:2], values=check)
        budgets = budgets.clamp(*config.budget_range)
    plan = make_plan(
        query,
        key,
        config,
        budgets=budgets,
        layout=layout,
        state=state,
        scale=scale,
        generator=generator,
    )
    return run_plan(query, key, value, plan, backend=config.backend, scale=scale)
