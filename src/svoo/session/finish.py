"""What every method's decision gets before and after the backend: the rule of `strict`, terms,
text, padding and corrections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from svoo.core.far_plan import add_far_terms
from svoo.core.layout import VideoLayout
from svoo.core.plan import BlockPlan, add_text
from svoo.core.terms import MeanTerms
from svoo.errors import StrictError
from svoo.methods.base import Corrected, Dense, MethodConfig


def check_strict(config: MethodConfig, why: Dense, what: str) -> None:
    """Refuse what would be dense under `strict=True`, unless the method planned it."""
    if config.strict and not why.planned:
        raise StrictError(f"strict: {what} would be dense: {why.reason}")


def video_part(tokens: Tensor, layout: VideoLayout | None) -> Tensor:
    """Return the video tokens of `[B, H, N, D]`."""
    return tokens if layout is None else layout.video_part(tokens)


def finish_plan(
    plan: BlockPlan,
    tokens: Sequence[Tensor],
    config: MethodConfig,
    layout: VideoLayout | None,
    scale: float | None = None,
) -> BlockPlan:
    """Return a method's plan of the video tokens with what all methods share.

    First terms for left-out blocks, if the config asks for them and the method made none; then
    text and padding. `tokens` are query, key, value `[B, H, N, D]`.
    """
    if config.compensate == "mean" and plan.terms is None:
        plan = replace(plan, terms=MeanTerms(plan.key_sizes > 0), check=False)
    if config.compensate == "far" and plan.terms is None:
        query, key, value = (video_part(side, layout) for side in tokens)
        plan = add_far_terms(plan, query, key, value, scale=scale)
    return plan if layout is None else add_text(plan, layout, check=False)


def correct_video(
    output: Tensor, lse: Tensor, decision: Corrected, layout: VideoLayout | None
) -> Tensor:
    """Return the output `[B, H, N, D]` with its video rows corrected by the method, from their
    log-sum-exp `[B, H, N]`."""
    if layout is None or layout.text == 0:
        return decision.correct(output, lse).to(output.dtype)
    video = layout.video_part(output)
    rows = lse.narrow(2, layout.video_start, layout.video)
    video.copy_(decision.correct(video, rows))
    return output
