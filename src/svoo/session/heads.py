"""Heads that are planned or run apart from others, because together they would take too much
memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from svoo.core.far_field import heads_per_group
from svoo.core.plan import BlockPlan
from svoo.methods.base import Call, Corrected, Method, MethodConfig


def groups_of_heads(method: Method, query: Tensor, key: Tensor) -> list[slice]:
    """Return the groups of heads that are planned together: all heads in one group, unless the
    method limits their number (`heads_per_plan`)."""
    heads = query.shape[1]
    bound = getattr(method, "heads_per_plan", None)
    return _groups(heads, heads if bound is None else max(1, min(heads, bound(query, key))))


def call_of_heads(call: Call, heads: slice, count: int) -> Call:
    """Return a call as the method sees it for some of its `count` heads."""
    return replace(
        call,
        head_offset=call.head_offset + heads.start,
        more_heads=heads.stop < count,
        count=partial(_count_share, call, (heads.stop - heads.start) / count),
    )


def _count_share(call: Call, heads: float, phase: str, share: float) -> None:
    """Count the work that a method did for this share of a call's heads."""
    call.count(phase, share * heads)


def split_heads(
    decision: BlockPlan | Corrected, tokens: Sequence[Tensor], config: MethodConfig
) -> list[tuple[slice, BlockPlan | Corrected]]:
    """Return a decision in groups of heads, so that far-field terms that are put for what a method
    drops take no more memory at a time than those of default mode."""
    batch, heads, _, size = tokens[0].shape
    if isinstance(decision, Corrected) or config.compensate != "far" or decision.terms is not None:
        return [(slice(0, heads), decision)]
    blocks = decision.keep.shape
    many = heads_per_group(batch, blocks[2], blocks[3], size, tokens[0].element_size())
    return [(group, decision.of_heads(group)) for group in _groups(heads, many)]


def _groups(heads: int, size: int) -> list[slice]:
    return [slice(first, min(first + size, heads)) for first in range(0, heads, size)]
