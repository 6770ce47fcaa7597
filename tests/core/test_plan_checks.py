from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from making import Case

from svoo import BlockPlan, FarTerms, GroupTerms, MeanTerms, run_plan
from svoo.errors import PlanError

CASE = Case(1, 2, 12, 14, 4, 3, 4, seed=3)


def far(**changes: Any) -> FarTerms:
    terms = CASE.far_plan(groups=2).terms
    assert isinstance(terms, FarTerms)
    return replace(terms, **changes)


def groups(**changes: Any) -> FarTerms:
    terms = far()
    assert terms.groups is not None
    return replace(terms, groups=replace(terms.groups, **changes))


def spoiled(tensor: torch.Tensor, bad: float) -> torch.Tensor:
    return torch.full_like(tensor, bad)


EVERYWHERE = torch.ones(1, 2, 3, 4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (MeanTerms(torch.ones(1, 2, 2).bool()), r"compensate must be \[1, 2, 4\]"),
        (MeanTerms(torch.ones(1, 2, 4)), "compensate must be bool, got torch.float32"),
        (torch.ones(1, 2, 4).bool(), "terms must be None, MeanTerms or FarTerms, got Tensor"),
        (far(middle=EVERYWHERE), "keep and middle must have no block in common, got 13, .*0, 0"),
        (far(middle=EVERYWHERE[:, :1]), r"middle must be \[1, 2, 3, 4\]"),
        (far(middle=EVERYWHERE.int()), "middle must be bool, got torch.int32"),
        (far(bias=far().bias.double()), "bias must be float32, got torch.float64"),
        (far(bias=far().bias[..., :2]), r"bias must be \[1, 2, 3, 4\] .* got \[1, 2, 3, 2\]"),
        (far(bias=spoiled(far().bias, torch.nan)), "bias holds NaN or infinity"),
        (far(bias=spoiled(far().bias, torch.inf)), "bias holds NaN or infinity"),
        (far(value=far().value[..., 0]), r"value must be \[1, 2, 3, 4, 'head size'\]"),
        (far(value=far().value[:, :, :2]), r"value must be \[1, 2, 3, 4, 4\]"),
        (far(value=far().value.int()), "value must have the tokens' floating dtype"),
        (far(value=spoiled(far().value, torch.nan)), "value holds NaN or infinity"),
        (far(value=spoiled(far().value, -torch.inf)), "value holds NaN or infinity"),
        (far(value=np.zeros((1, 2, 3, 4, 4))), "value must be a torch.Tensor, got ndarray"),
        (far(value=far().value.to("meta")), "value is on meta, but keep is on cpu"),
        (groups(bias=torch.zeros(1, 2, 4, 2)), r"groups.bias must be \[1, 2, 3, 2\]"),
        (groups(bias=torch.tensor(0.0)), r"groups.bias must be \[1, 2, 3, 0\]"),
        (groups(bias=torch.full((1, 2, 3, 2), torch.nan)), "groups.bias holds NaN"),
        (groups(key=torch.zeros(1, 2, 3, 2, 5)), r"groups.key must be \[1, 2, 3, 2, 4\]"),
        (groups(key=torch.full((1, 2, 3, 2, 4), torch.nan)), "groups.key holds NaN"),
        (groups(value=torch.zeros(1, 2, 3, 2, 4).half()), "groups.value must be float32"),
        (groups(value=torch.full((1, 2, 3, 2, 4), torch.inf)), "groups.value holds NaN"),
    ],
)
def test_terms_that_do_not_fit_are_refused(terms: Any, message: str) -> None:
    plan = CASE.plan(compensate=False)
    with pytest.raises(PlanError, match=message):
        replace(plan, terms=terms)


def test_what_is_not_read_may_be_anything() -> None:
    plan = CASE.far_plan(groups=2)
    assert isinstance(plan.terms, FarTerms) and isinstance(plan.terms.groups, GroupTerms)
    assert bool(plan.terms.value.isnan().any()) and bool(plan.terms.bias.isnan().any())
    output = run_plan(*CASE.tokens(), plan, backend="reference")
    assert bool(output.isfinite().all())


def test_terms_for_other_tokens_are_refused() -> None:
    query, key, value = CASE.tokens(torch.float64)
    with pytest.raises(PlanError, match="head size 4 in torch.float64, the plan's terms 4 in tor"):
        run_plan(query, key, value, CASE.far_plan())
    with pytest.raises(PlanError, match="head size 3 in torch.float32, the plan's terms 4"):
        query, key, value = (x[..., :3].float() for x in (query, key, value))
        run_plan(query, key, value, CASE.far_plan())


@pytest.mark.parametrize("side", ["query", "key"])
def test_token_counts_must_be_those_of_orders_and_sizes(side: str) -> None:
    tokens: dict[str, Any] = {f"{side}_tokens": 99}
    plan = CASE.plan(compensate=False)
    with pytest.raises(PlanError, match=f"{side}_order is for 1. tokens, {side}_tokens is 99"):
        replace(plan, **tokens)
    bare = BlockPlan(None, None, plan.query_sizes, plan.key_sizes, plan.keep)
    with pytest.raises(PlanError, match=f"{side}_sizes must sum to 99 tokens"):
        replace(bare, **tokens)


def test_a_plan_of_nothing_is_refused() -> None:
    none = torch.zeros(1, 1, 1, dtype=torch.int64)
    keep = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    with pytest.raises(PlanError, match="1 to 2147483647 query tokens, got 0"):
        BlockPlan(None, None, none, none + 1, keep)
    with pytest.raises(PlanError, match="none of them 0, got .* 1, 0"):
        BlockPlan(None, None, none, none[:, :, :0], keep[..., :0])
