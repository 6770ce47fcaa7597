import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, chance, map_tensors, normal
from synthetic import clustered_tokens
from torch.nn.functional import scaled_dot_product_attention

from svoo import VideoLayout, run_plan
from svoo.core.clustering import Implementation
from svoo.core.far_field import FarField, Moments
from svoo.core.far_groups import group_keys
from svoo.core.far_plan import add_far_terms, choose_tiers, plan_far_field
from svoo.core.kmeans import k_means
from svoo.core.plan import BlockPlan
from svoo.core.sorting import sort_sides
from svoo.core.terms import FarTerms
from svoo.errors import PlanError

on_every_implementation = pytest.mark.parametrize(
    "by", ["torch", pytest.param("cpp", marks=pytest.mark.compiler)]
)


def terms_of(plan: BlockPlan) -> FarTerms:
    assert isinstance(plan.terms, FarTerms)
    return plan.terms


def checked(plan: BlockPlan) -> BlockPlan:
    """Refuse a plan that contradicts itself."""
    parts = plan.query_order, plan.key_order, plan.query_sizes, plan.key_sizes, plan.keep
    return BlockPlan(*parts, plan.terms)


@on_every_implementation
@settings(max_examples=50)
@given(
    case=cases(max_tokens=60, sizes=(1, 5, 32)),
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
    groups=st.sampled_from((0, 1, 8)),
    tolerance=st.sampled_from((0.0, 1e-3, 0.1, 1e9)),
)
def test_the_tiers_are_a_partition(
    by: Implementation, case: Case, dtype: torch.dtype, groups: int, tolerance: float
) -> None:
    labels, counts = case.plan(compensate=False), (case.query_blocks, case.key_blocks)
    query, key, value = case.tokens(dtype)
    plan = plan_far_field(
        query, key, value, *sort_sides((labels.query_blocks(), labels.key_blocks()), counts),
        tolerance=tolerance, groups=groups, implementation=by,
    )  # fmt: skip
    terms, full = terms_of(checked(plan)), (plan.key_sizes > 0).unsqueeze(2)
    assert not bool((plan.keep & terms.middle).any())
    assert bool((plan.keep.sum(dim=-1) >= 1).all()) and not bool((plan.keep & ~full).any())
    far = full & ~plan.keep & ~terms.middle
    assert (terms.groups is None) == (groups == 0)
    if terms.groups is None:
        assert not bool(far.any())
    else:
        assert torch.equal((terms.groups.bias > -torch.inf).any(-1), far.any(-1))
    if tolerance == 1e9:
        assert bool((plan.keep.sum(dim=-1) == 1).all())
    # A query that equals its block's mean loses nothing: its log-sum-exp is that of all keys.
    if not groups and dtype == torch.float32:
        means = torch.zeros(*plan.query_sizes.shape, case.size)
        blocks = plan.query_blocks().unsqueeze(-1).expand_as(query)
        means = means.scatter_add(2, blocks, query)
        means = means / plan.query_sizes.clamp(min=1).unsqueeze(-1)
        query = means.gather(2, blocks)
        got = run_plan(query, key, value, plan, backend="reference")
        dense = scaled_dot_product_attention(query, key, value)
        torch.testing.assert_close(got, dense, atol=2e-4, rtol=2e-4)


def relative_error(
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor], plan: BlockPlan
) -> float:
    dense = scaled_dot_product_attention(*parts)
    return float((run_plan(*parts, plan) - dense).norm() / dense.norm())


def test_one_tolerance_trades_density_for_error() -> None:
    parts = clustered_tokens(1, 2, 900, 32, generator=chance(0))
    clusters = k_means(*parts[:2], 12, 40, iterations=4)
    sides = clusters.query.sorted(), clusters.key.sorted()
    found = []
    for tolerance in (1e-2, 1e-3, 1e-4):
        plan = plan_far_field(*parts, *sides, tolerance=tolerance)
        found.append((float(plan.density().mean()), relative_error(parts, plan)))
    densities, errors = zip(*found, strict=True)
    assert list(densities) == sorted(densities) and list(errors) == sorted(errors, reverse=True)
    assert errors[0] < 0.5 and densities[0] < 0.5
    heavier = plan_far_field(*parts, *sides, tolerance=1e-3, weight=torch.tensor([1.0, 100.0]))
    plain = plan_far_field(*parts, *sides, tolerance=1e-3)
    assert torch.equal(heavier.keep[:, 0], plain.keep[:, 0])
    assert bool((heavier.density()[:, 1] > plain.density()[:, 1]).all())


def test_text_and_padding_stay_outside() -> None:
    layout = VideoLayout(2, 3, 4, text=5, valid_text=torch.tensor([5, 2]))
    query, key, value = (normal(2, 3, 29, 8, seed=seed) for seed in range(3))
    labels = torch.arange(24).expand(2, 3, 24) % 4
    sides = sort_sides((labels, labels), (4, 4))
    plan = plan_far_field(query, key, value, *sides, tolerance=1e-2, groups=2, layout=layout)
    exact = run_plan(query, key, value, plan, backend="reference")
    assert (plan.query_tokens, plan.key_tokens) == (29, 29)
    assert not bool(terms_of(plan).middle[..., 4:].any())
    key[1, :, 26:], value[1, :, 26:] = 100.0, 1e6
    again = run_plan(query, key, value, plan, backend="reference")
    torch.testing.assert_close(again[1, :, :26], exact[1, :, :26])


@pytest.mark.compiler
@settings(max_examples=80)
@given(
    case=cases(sizes=(1, 5, 32, 40)),
    groups=st.sampled_from((0, 1, 8)),
    tolerance=st.sampled_from((0.0, 1e-3, 3e-2, 1e9)),
)
def test_the_kernel_is_the_definition(case: Case, groups: int, tolerance: float) -> None:
    """The kernel in float32 against torch in float64; what is near the tolerance may differ."""

    def blocks(count: int, seed: int, sizes: torch.Tensor) -> Moments:
        shape = (case.batch, case.heads, count, case.size)
        return Moments(normal(*shape, seed=seed), normal(*shape, seed=seed + 1).square(), sizes)

    shape = (case.batch, case.heads, case.query_blocks, case.key_blocks)
    sizes = (normal(*shape[:2], case.key_blocks, seed=case.seed).abs() * 4).long()
    sizes[..., -1] += 1
    query = blocks(case.query_blocks, 1, torch.ones(shape[:3]).long())
    key, value = (blocks(case.key_blocks, seed, sizes) for seed in (3, 5))
    log_sum = normal(*shape, seed=7).masked_fill(sizes.unsqueeze(2) == 0, -torch.inf)
    scale = 0.4
    view = FarField(log_sum, normal(*shape, case.size, seed=8), normal(*shape, seed=9).abs())
    weight = normal(case.heads, seed=10).abs()
    wide = [
        map_tensors(part, lambda x: x.double() if x.is_floating_point() else x)
        for part in (view, query, key, value)
    ]
    got = choose_tiers(
        view, query, key, value, tolerance=tolerance, weight=weight, groups=groups, scale=scale,
        by="cpp",
    )  # fmt: skip
    exact, lower, higher = (
        choose_tiers(
            *wide, tolerance=tolerance * factor, weight=weight.double(), groups=groups,
            scale=scale, by="torch",
        )
        for factor in (1, 0.999, 1.001)
    )  # fmt: skip
    sure = (lower.keep == higher.keep).all(-1) & (lower.middle == higher.middle).all(-1)
    assert torch.equal(got.keep[sure], exact.keep[sure])
    count = max(1, groups)
    narrow = group_keys(key, value, count, by="cpp")
    broad = group_keys(wide[2], wide[3], count)
    if not torch.equal(narrow.labels, broad.labels):  # a tie between groups
        return
    assert torch.equal(got.middle[sure], exact.middle[sure])
    assert (got.groups is None) == (exact.groups is None) == (groups == 0)
    if got.groups is not None and exact.groups is not None:
        bias, exact_bias = got.groups.bias[sure], exact.groups.bias[sure]
        torch.testing.assert_close(bias, exact_bias, atol=1e-3, rtol=1e-3)
        some = exact_bias > -torch.inf
        for mine, other in (
            (got.groups.key, exact.groups.key),
            (got.groups.value, exact.groups.value),
        ):
            torch.testing.assert_close(
                mine[sure][some].double(), other[sure][some], atol=1e-3, rtol=1e-3
            )


def test_terms_that_would_fill_the_memory_are_refused() -> None:
    blocks = 70_000
    keep = torch.ones(1, 1, 1, 1, dtype=torch.bool).expand(1, 1, blocks, blocks)
    sizes = torch.ones(1, 1, blocks, dtype=torch.int64)
    plan = BlockPlan(None, None, sizes, sizes, keep, check=False)
    tokens = torch.zeros(1, 1, blocks, 8)
    with pytest.raises(PlanError, match="70,000 x 70,000 blocks take 157 GB per head"):
        add_far_terms(plan, tokens, tokens, tokens)
