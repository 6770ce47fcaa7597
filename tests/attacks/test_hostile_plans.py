"""Plans made to read or write what is not theirs: each is refused, or runs as the reference."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from making import Case, map_tensors, normal

from svoo import BlockPlan, MeanTerms, VideoLayout, add_text, run_plan
from svoo.errors import PlanError, ShapeError, SVOOError

on_every_backend = pytest.mark.parametrize(
    "backend", ["reference", "blocked", pytest.param("cpp", marks=pytest.mark.compiler)]
)
CASE = Case(1, 2, 20, 30, 8, 3, 4, seed=0)


@pytest.mark.parametrize("side", ["query", "key"])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        [2**62, 2**62, 2**62, 2**62 + 8],  # their sum wraps around to 8
        [2**63 - 1, 2**63 - 1, 10, 0],
        [2**61] * 7 + [2**61 + 8],
        [9, -1, 0, 0],
        [-(2**63), -(2**63), 8, 0],
    ],
)
def test_sizes_that_wrap_around(side: str, ordered: bool, sizes: list[int]) -> None:
    tokens = torch.tensor(sizes).view(1, 1, -1)
    fine = torch.tensor([[[8]]])
    order = torch.arange(8).view(1, 1, 8) if ordered else None
    shape = (1, 1, len(sizes), 1) if side == "query" else (1, 1, 1, len(sizes))
    parts = (tokens, fine) if side == "query" else (fine, tokens)
    with pytest.raises(PlanError, match=f"{side}_sizes must not"):
        BlockPlan(order, order, *parts, torch.ones(shape, dtype=torch.bool))


def test_counts_so_large_that_equal_sizes_wrap_to_them() -> None:
    sizes = torch.full((1, 1, 17), 2**60)  # 17 * 2**60 wraps to 2**60
    keep = torch.ones(1, 1, 1, 17, dtype=torch.bool)
    with pytest.raises(PlanError, match="1 to 2147483647 key tokens, got 1152921504606846976"):
        BlockPlan(None, None, torch.tensor([[[1]]]), sizes, keep)


@pytest.mark.parametrize("bad", [-1, 30, 2**40, -(2**63)])
def test_orders_that_point_outside(bad: int) -> None:
    plan = CASE.plan(compensate=False)
    assert plan.key_order is not None
    order = plan.key_order.clone()
    order[0, 1, 7] = bad
    with pytest.raises(PlanError, match="key_order is not a permutation"):
        replace(plan, key_order=order)


@pytest.mark.parametrize("bad", [-1, 4, 2**40])
def test_labels_that_point_outside(bad: int) -> None:
    labels = torch.zeros(1, 1, 9, dtype=torch.int64)
    labels[0, 0, 3] = bad
    with pytest.raises(PlanError, match="key_labels must be from 0 to 3"):
        BlockPlan.from_labels(torch.zeros_like(labels), labels, torch.ones(1, 1, 1, 4).bool())
    with pytest.raises(PlanError, match="must be whole numbers"):
        BlockPlan.from_labels(labels.bool(), labels, torch.ones(1, 1, 1, 4).bool())


@pytest.mark.parametrize("valid", [-1, 6, 2**62])
def test_text_counts_that_do_not_fit(valid: int) -> None:
    layout = VideoLayout(1, 4, 5, text=5, valid_text=torch.tensor([valid]))
    plan = Case(1, 1, 20, 20, 8, 3, 4, seed=0).plan(compensate=False)
    with pytest.raises(ShapeError, match="valid_text must be between 0 and the 5"):
        add_text(plan, layout)
    trusted = add_text(plan, layout, check=False)  # not looked at, but no kernel may crash
    replace(trusted, check=True)


@pytest.mark.parametrize("name", ["query_order", "query_sizes", "keep", "terms"])
def test_arrays_and_lists_are_no_tensors(name: str) -> None:
    plan = CASE.plan(compensate=True)
    tensor = plan.query_order if name == "query_order" else plan.keep
    assert tensor is not None
    for bad in (np.asarray(tensor), tensor.tolist(), "keep"):
        changes: dict[str, Any] = {name: MeanTerms(bad) if name == "terms" else bad}  # type: ignore[arg-type]
        with pytest.raises(PlanError, match=r"must be a torch.Tensor, got (ndarray|list|str)"):
            replace(plan, **changes)


@on_every_backend
def test_views_of_a_plan_run_as_their_copies(backend: str) -> None:
    """Negated in name only, expanded, with other strides: what a kernel would misread."""
    case = Case(2, 3, 20, 30, 8, 3, 4, seed=5)
    tokens, plan = case.tokens(), case.plan(compensate=True)
    exact = run_plan(*tokens, plan, backend="reference")

    def negated(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.dtype == torch.bool else torch._neg_view(-tensor)

    def sliced(tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack((tensor, torch.zeros_like(tensor)), dim=-1)[..., 0]

    for change in (negated, sliced, lambda tensor: tensor.mT.contiguous().mT):
        other: BlockPlan = map_tensors(plan, change)
        torch.testing.assert_close(run_plan(*tokens, other, backend=backend), exact)
    same = Case(1, 1, 20, 30, 8, 3, 4, seed=5).plan(compensate=True)
    expanded: BlockPlan = map_tensors(same, lambda tensor: tensor.expand(2, 3, *tensor.shape[2:]))
    copied: BlockPlan = map_tensors(expanded, torch.clone)
    torch.testing.assert_close(
        run_plan(*tokens, expanded, backend=backend),
        run_plan(*tokens, copied, backend="reference"),
    )


def test_labels_negated_in_name_only() -> None:
    labels = torch.tensor([[[2, 0, 1, 2, 0]]])
    keep = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    plan = BlockPlan.from_labels(torch._neg_view(-labels), labels, keep)
    assert plan.query_order is not None
    assert plan.query_order.tolist() == [[[1, 4, 2, 0, 3]]]
    assert torch.equal(plan.query_blocks(), labels)


@on_every_backend
def test_no_plan_at_all(backend: str) -> None:
    with pytest.raises(SVOOError, match="plan must be a BlockPlan, got dict"):
        run_plan(*CASE.tokens(), {}, backend=backend)  # type: ignore[call-overload]


def test_a_plan_for_more_tokens_than_there_are() -> None:
    query, key, value = (normal(1, 2, count, 8) for count in (20, 29, 29))
    with pytest.raises(PlanError, match=r"\[1, 2, 20, 29\], the plan is for \[1, 2, 20, 30\]"):
        run_plan(query, key, value, CASE.plan(compensate=True))
