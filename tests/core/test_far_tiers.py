import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, map_tensors, normal

from svoo.core.far_tiers import Blocks, choose, choose_tiers, group_labels
from svoo.core.far_view import View


def test_the_best_block_is_kept_and_never_an_empty_one() -> None:
    error = torch.tensor([[[[0.0, 0.0, 0.0], [0.2, 0.3, 0.1]]]])
    keep = choose(error, torch.tensor([[[0, 4, 2]]]), 9.0, torch.ones(1))
    assert keep.tolist() == [[[[False, True, False], [False, True, False]]]]


@pytest.mark.compiler
@settings(max_examples=80)
@given(
    case=cases(sizes=(1, 5, 32, 40)),
    groups=st.sampled_from((0, 1, 8)),
    tolerance=st.sampled_from((0.0, 1e-3, 3e-2, 1e9)),
)
def test_the_kernel_is_the_definition(case: Case, groups: int, tolerance: float) -> None:
    """The kernel in float32 against torch in float64; what is near the tolerance may differ."""

    def blocks(count: int, seed: int, sizes: torch.Tensor) -> Blocks:
        shape = (case.batch, case.heads, count, case.size)
        return Blocks(normal(*shape, seed=seed), normal(*shape, seed=seed + 1).square(), sizes)

    shape = (case.batch, case.heads, case.query_blocks, case.key_blocks)
    sizes = (normal(*shape[:2], case.key_blocks, seed=case.seed).abs() * 4).long()
    sizes[..., -1] += 1
    query = blocks(case.query_blocks, 1, torch.ones(shape[:3]).long())
    key, value = (blocks(case.key_blocks, seed, sizes) for seed in (3, 5))
    log_sum = normal(*shape, seed=7).masked_fill(sizes.unsqueeze(2) == 0, -torch.inf)
    scale = 0.4
    logit = query.mean @ key.mean.mT * scale
    view = View(log_sum, logit, normal(*shape, case.size, seed=8), normal(*shape, seed=9).abs())
    weight = normal(case.heads, seed=10).abs()
    wide = [
        map_tensors(part, lambda x: x.double() if x.is_floating_point() else x)
        for part in (view, query, key, value)
    ]
    got = choose_tiers(
        view, query, key, value, tolerance=tolerance, weight=weight, groups=groups, scale=scale,
        token=torch.float32,
    )  # fmt: skip
    exact, lower, higher = (
        choose_tiers(
            *wide, tolerance=tolerance * factor, weight=weight.double(), groups=groups,
            scale=scale, token=torch.float64,
        )
        for factor in (1, 0.999, 1.001)
    )  # fmt: skip
    sure = (lower.keep == higher.keep).all(-1) & (lower.middle == higher.middle).all(-1)
    assert torch.equal(got.keep[sure], exact.keep[sure])
    narrow, broad = (group_labels(side.mean, sizes, max(1, groups)) for side in (key, wide[2]))
    if not torch.equal(narrow, broad):  # a tie between groups
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
