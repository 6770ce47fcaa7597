"""One attention call of any method, without a pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from svoo.backends import run_plan
from svoo.core.layout import VideoLayout
from svoo.core.plan import BlockPlan
from svoo.core.quality import sampled_error
from svoo.core.random import mix_seeds, seeded
from svoo.core.validate import check_budgets, check_tokens, inference_only
from svoo.errors import ConfigError
from svoo.methods.base import (
    Call,
    Corrected,
    Dense,
    MethodConfig,
    Run,
    require,
    require_count,
)
from svoo.methods.svoo.config import SVOOConfig
from svoo.methods.svoo.labels import LabelState
from svoo.methods.svoo.method import SVOOMethod, plan_call
from svoo.session.checks import check_config, check_generator, check_layout, check_step
from svoo.session.finish import check_strict, correct_video, finish_plan, video_part
from svoo.session.session import JUDGED_ROWS


@inference_only
def make_plan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    config: MethodConfig,
    *,
    layout: VideoLayout | None = None,
    step: int | None = None,
    steps: int | None = None,
    layer: int = 0,
    layers: int = 1,
    scale: float | None = None,
    generator: torch.Generator | None = None,
    check: bool = True,
) -> BlockPlan:
    """Return the plan of a method for query `[B, H, N, D]` and key, value `[B, H, M, D]`, text and
    padding included.

    `step=None`: the method plans as after its warm-up. Otherwise `step` is one of `steps`. Where
    the method decides for dense, the plan keeps every pair; `strict=True` makes that an error,
    warm-up aside. A method that needs the grid of the video refuses `layout=None`. `check=False`
    skips the checks that wait for the device.
    """
    _check(query, key, value, config, layout, generator, check=check)
    if step is not None:
        require("steps", steps, "given with step: how many there are", fits=steps is not None)
    for name, count in (("steps", steps or 1), ("layers", layers)):
        require_count(name, count, 1)
    check_step(step or 0, steps, layer, layers)
    tokens = query, key, value
    shown = [video_part(side, layout) for side in tokens]
    method, call = _start(query, config, layout, step, steps, layer, layers, scale, generator)
    decision = method.plan(shown[0], shown[1], shown[2], call)
    if isinstance(decision, Dense):
        everything = _everything(query, key, layout, config, decision)
        return finish_plan(everything, tokens, config, layout, scale)
    plan = decision.plan if isinstance(decision, Corrected) else decision
    return finish_plan(plan, tokens, config, layout, scale)


@inference_only
def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    config: MethodConfig,
    *,
    budgets: Tensor | None = None,
    layout: VideoLayout | None = None,
    state: LabelState | None = None,
    scale: float | None = None,
    generator: torch.Generator | None = None,
    check: bool = True,
) -> Tensor:
    """Attend from query `[B, H, N, D]` to key, value `[B, H, M, D]`, computing only the blocks
    that a method keeps, as after its warm-up.

    `layout` says which tokens are text and padding. Two arguments are for SVOO alone: `budgets`
    `[H]` or `[B, H]` are the fractions to keep, from a profile, beside a `mass` (None: mass or
    tolerance alone decides); `state` carries labels from one call of a layer to the next (set
    `state.step` before each call).
    Where the method decides for dense, or finds its output too far from dense, every pair is
    computed, or refused under `strict=True`.
    `check=False` skips the checks that wait for the device. No gradients flow.
    """
    _check(query, key, value, config, layout, generator, check=check)
    fits = state is None or isinstance(state, LabelState)
    require("state", state, "a LabelState or None", fits=fits)
    tokens = query, key, value
    shown = [video_part(side, layout) for side in tokens]
    if budgets is None and state is None:
        method, call = _start(query, config, layout, scale=scale, generator=generator)
        decision = method.plan(shown[0], shown[1], shown[2], call)
    elif isinstance(config, SVOOConfig):
        if budgets is not None:
            check_budgets(budgets, *query.shape[:2], values=check)
            budgets = budgets.clamp(*config.budget_range)
        step = state.step if state else 0
        chance = generator or seeded(mix_seeds(config.seed, step))
        method, call = _start(query, config, layout, scale=scale, generator=chance)
        call = replace(call, step=step)
        assert isinstance(method, SVOOMethod)
        if config.tolerance is None:
            decision = plan_call(shown[0], shown[1], config, call, budgets=budgets, state=state)
        elif budgets is None:
            decision = method.plan(shown[0], shown[1], shown[2], call, state)
        else:
            raise ConfigError(
                "budgets and a tolerance are two ways to decide what is kept: give "
                "SVOOConfig(mass=...) with budgets"
            )
    else:
        raise ConfigError(f"budgets and state are SVOO's; {config.name} takes neither")
    if isinstance(decision, Dense):  # keeping so much would not pay
        return _attend(
            tokens, _everything(query, key, layout, config, decision), config, layout, scale
        )
    output = _attend(tokens, decision, config, layout, scale)
    judge = method.judge(call) if hasattr(method, "judge") else None
    if judge is not None:  # what is small for a tolerance may be much of a small output
        chance = call.chance(config.seed)
        error = sampled_error(
            *tokens, output, rows=JUDGED_ROWS, generator=chance, layout=layout, scale=scale
        )
        verdict = judge(error.mean(dim=0))
        if verdict is not None:
            everything = _everything(query, key, layout, config, verdict)
            return _attend(tokens, everything, config, layout, scale)
    return output


def _attend(
    tokens: tuple[Tensor, Tensor, Tensor],
    decision: BlockPlan | Corrected,
    config: MethodConfig,
    layout: VideoLayout | None,
    scale: float | None,
) -> Tensor:
    """Run what was decided."""
    plan = decision.plan if isinstance(decision, Corrected) else decision
    plan = finish_plan(plan, tokens, config, layout, scale)
    if not isinstance(decision, Corrected):
        return run_plan(*tokens, plan, backend=config.backend, scale=scale)
    output, lse = run_plan(*tokens, plan, backend=config.backend, scale=scale, return_lse=True)
    assert lse is not None
    return correct_video(output, lse, decision, layout)


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    config: MethodConfig,
    layout: VideoLayout | None,
    generator: torch.Generator | None,
    *,
    check: bool,
) -> None:
    """Refuse tokens, settings and a layout that do not fit together."""
    check_config(config)
    check_tokens(query, key, value, finite=check)
    check_layout(layout, query, key, values=check)
    check_generator(generator)


def _start(
    query: Tensor,
    config: MethodConfig,
    layout: VideoLayout | None,
    step: int | None = None,
    steps: int | None = None,
    layer: int = 0,
    layers: int = 1,
    scale: float | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Any, Call]:
    """Return a method that has just begun, and one call of it."""
    if step is None:
        config = config.always_sparse()
    run = Run(steps=steps or (step or 0) + 1, layers=layers, heads=query.shape[1])
    call = Call(step or 0, layer, layout, scale=scale, generator=generator)
    return config.start(run), call


def _everything(
    query: Tensor, key: Tensor, layout: VideoLayout | None, config: MethodConfig, why: Dense
) -> BlockPlan:
    """Return the plan with one query block and one key block, which keeps all video pairs; refuse
    it under `strict=True`."""
    check_strict(config, why, "this call")
    lead, device = query.shape[:2], query.device
    counts = (query.shape[2], key.shape[2]) if layout is None else (layout.video, layout.video)
    sizes = [torch.full((*lead, 1), count, device=device) for count in counts]
    keep = torch.ones(*lead, 1, 1, dtype=torch.bool, device=device)
    return BlockPlan(
        None,
        None,
        sizes[0],
        sizes[1],
        keep,
        check=False,
        query_tokens=counts[0],
        key_tokens=counts[1],
    )
