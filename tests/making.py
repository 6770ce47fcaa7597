"""What several tests make: random tokens, plans and profiles, and hypothesis strategies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from svoo import BlockPlan, FarTerms, GroupTerms, MeanTerms, Profile
from svoo.profiles.profile import flow_sigmas

GPU_EXAMPLES = 6


def examples(count: int) -> int:
    """Return how many random cases a kernel is tested with: few on a GPU, where most of them
    compile it anew (`test_gpu_tests.py` counts)."""
    return min(count, GPU_EXAMPLES) if torch.cuda.is_available() else count


def chance(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=chance(seed), dtype=torch.float64).to(dtype)


def far_apart(tokens: Tensor) -> Tensor:
    """Return tokens `[1, H, N, D]` whose heads are 2^30 numbers apart: the third begins behind
    2^31. The memory between is never touched, so the system does not provide it."""
    heads, count, size = tokens.shape[1:]
    filled = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode=False)  # which would fill it
    room = torch.empty(
        ((heads - 1) << 30) + count * size, dtype=tokens.dtype, device=tokens.device
    )
    torch.use_deterministic_algorithms(mode=filled)
    apart = room.as_strided(tokens.shape, (room.numel(), 1 << 30, size, 1))
    return apart.copy_(tokens)


def map_tensors(thing: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a plan, or terms, with all tensors changed; what was None stays so."""
    if isinstance(thing, Tensor):
        return change(thing)
    if not is_dataclass(thing):
        return thing
    parts = {field.name: getattr(thing, field.name) for field in fields(thing)}
    changed = {name: map_tensors(part, change) for name, part in parts.items()}
    return replace(thing, **changed)  # type: ignore[type-var]


def plan_on(device: torch.device, plan: BlockPlan) -> BlockPlan:
    """Return a plan with its tensors on another device."""
    moved: BlockPlan = map_tensors(plan, lambda tensor: tensor.to(device))
    return moved


@dataclass(frozen=True)
class Case:
    """Sizes of a random call."""

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    query_blocks: int
    key_blocks: int
    seed: int

    def tokens(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
        lead = (self.batch, self.heads)
        return (
            2 * normal(*lead, self.queries, self.size, seed=self.seed, dtype=dtype),
            normal(*lead, self.keys, self.size, seed=self.seed + 1, dtype=dtype),
            normal(*lead, self.keys, self.size, seed=self.seed + 2, dtype=dtype),
        )

    def plan(self, *, compensate: bool, ordered: bool = True) -> BlockPlan:
        """A random plan; blocks are uneven and some are empty, because labels are drawn with a
        skew."""
        generator = chance(self.seed + 3)
        lead = (self.batch, self.heads)

        def labels(tokens: int, blocks: int) -> Tensor:
            skewed = torch.rand(*lead, tokens, generator=generator).square()
            drawn = (skewed * blocks).long().clamp(max=blocks - 1)
            return drawn if ordered else drawn.sort(dim=-1).values

        query_labels = labels(self.queries, self.query_blocks)
        key_labels = labels(self.keys, self.key_blocks)
        keep = torch.rand(*lead, self.query_blocks, self.key_blocks, generator=generator) < 0.4
        sizes = torch.zeros(*lead, self.key_blocks, dtype=torch.int64)
        sizes.scatter_add_(2, key_labels, torch.ones_like(key_labels))
        keep.scatter_(
            3, sizes.argmax(dim=-1).view(*lead, 1, 1).expand(*lead, self.query_blocks, 1), True
        )
        marked = torch.rand(sizes.shape, generator=generator) < 0.8
        terms = MeanTerms(marked) if compensate else None
        plan = BlockPlan.from_labels(query_labels, key_labels, keep, terms)
        if ordered:
            return plan
        return BlockPlan(None, None, plan.query_sizes, plan.key_sizes, keep, terms)

    def far_plan(
        self, *, groups: int = 0, ordered: bool = True, dtype: torch.dtype = torch.float32
    ) -> BlockPlan:
        """A random plan with far terms; some add nothing, and what is not read is NaN."""
        plan = self.plan(compensate=False, ordered=ordered)
        generator = chance(self.seed + 4)
        middle = ~plan.keep & (torch.rand(plan.keep.shape, generator=generator) < 0.7)
        bias, value = self._far_rows(middle, generator, dtype)
        terms = FarTerms(middle, bias, value)
        value.masked_fill_(~terms.enters(plan.key_sizes).unsqueeze(-1), torch.nan)
        if groups:
            all_read = torch.ones(*plan.keep.shape[:3], groups, dtype=torch.bool)
            group_bias, group_value = self._far_rows(all_read, generator, dtype)
            group_key = self._far_rows(all_read, generator, dtype)[1]
            for rows in (group_key, group_value):
                rows.masked_fill_((group_bias == -torch.inf).unsqueeze(-1), torch.nan)
            terms = replace(terms, groups=GroupTerms(group_bias, group_key, group_value))
        return replace(plan, terms=terms)

    def _far_rows(
        self, read: Tensor, generator: torch.Generator, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        bias = torch.randn(read.shape, generator=generator) + 1
        bias.masked_fill_(torch.rand(read.shape, generator=generator) < 0.1, -torch.inf)
        bias.masked_fill_(~read, torch.nan)
        return bias, torch.randn(*read.shape, self.size, generator=generator).to(dtype)


@st.composite
def cases(draw: st.DrawFn, max_tokens: int = 40, sizes: tuple[int, ...] = (1, 3, 8, 16)) -> Case:
    queries, keys = draw(st.integers(1, max_tokens)), draw(st.integers(1, max_tokens))
    return Case(
        batch=draw(st.integers(1, 2)),
        heads=draw(st.integers(1, 3)),
        queries=queries,
        keys=keys,
        size=draw(st.sampled_from(sizes)),
        query_blocks=draw(st.integers(1, min(6, queries))),
        key_blocks=draw(st.integers(1, min(9, keys))),
        seed=draw(st.integers(0, 10_000)),
    )


def made_profile(seed: int = 0) -> Profile:
    density = torch.rand(3, 4, 5, 2, 2, generator=torch.Generator().manual_seed(seed))
    masses = torch.tensor([0.9, 0.95], dtype=torch.float64)
    facts = {"model": "<tiny & mean>"}
    stage = torch.zeros(4, dtype=torch.int64)
    return Profile(density, flow_sigmas(4, 5.0), stage, masses, facts, 0.01 * density)
