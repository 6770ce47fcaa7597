import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, chance, normal

from svoo import SVOOConfig, VideoLayout, make_plan
from svoo.core import quality as quality_module
from svoo.core.quality import masked_errors, output_error, recall, sampled_error
from svoo.errors import PlanError, ShapeError


@given(case=cases())
def test_recall_is_the_mass_on_kept_pairs(case: Case) -> None:
    query, key, _ = case.tokens(torch.float64)
    plan = case.plan(compensate=True)
    weights = (query @ key.transpose(2, 3) / math.sqrt(case.size)).softmax(dim=-1)
    exact = (weights * plan.to_dense_mask()).sum(dim=-1).mean(dim=-1)
    torch.testing.assert_close(recall(query, key, plan), exact)


def test_recall_in_chunks_and_on_sampled_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(2, 2, 200, 50, 8, 5, 6, seed=3)
    query, key, _ = case.tokens()
    plan = case.plan(compensate=False)
    whole = recall(query, key, plan)
    assert (recall(query, key, plan, rows=100) - whole).abs().max() < 0.05
    monkeypatch.setattr(quality_module, "_CHUNK_ELEMENTS", 4 * 50 * 7)
    torch.testing.assert_close(recall(query, key, plan), whole)
    with pytest.raises(ShapeError, match="rows must be between 1 and the 200"):
        recall(query, key, plan, rows=201)


def test_keeping_everything_has_recall_one() -> None:
    case = Case(1, 2, 60, 50, 8, 4, 6, seed=1)
    query, key, _ = case.tokens()
    some = case.plan(compensate=False)
    everything = replace(some, keep=torch.ones_like(some.keep))
    torch.testing.assert_close(recall(query, key, everything), torch.ones(1, 2))


@given(text=st.integers(1, 6), first=st.booleans(), mass=st.sampled_from((0.5, 1.0)))
def test_padding_counts_neither_as_key_nor_as_query(text: int, first: bool, mass: float) -> None:
    valid = torch.tensor([text, text // 2])
    layout = VideoLayout(2, 3, 4, text=text, text_first=first, valid_text=valid)
    query, key = (normal(2, 2, layout.tokens, 8, seed=seed) for seed in range(2))
    config = SVOOConfig(mass=mass, query_clusters=3, key_clusters=6)
    plan = make_plan(query, key, query, config, layout=layout)
    found, mask = recall(query, key, plan, layout=layout), plan.to_dense_mask()
    for b in range(2):
        start = layout.text_start + int(valid[b])
        padding = range(start, layout.text_start + text)
        real = [token for token in range(layout.tokens) if token not in padding]
        logits = query[b][:, real] @ key[b][:, real].mT / math.sqrt(8)
        weights = logits.softmax(dim=-1)
        kept = (weights * mask[b][:, real][:, :, real]).sum(dim=-1).mean(dim=-1)
        torch.testing.assert_close(found[b], kept)
    if mass == 1:
        torch.testing.assert_close(found, torch.ones(2, 2))
        assert plan.density(layout.padding).tolist() == [[1.0, 1.0]] * 2


def test_a_plan_for_other_tensors_is_refused() -> None:
    case = Case(1, 2, 60, 50, 8, 4, 6, seed=1)
    query, key, _ = case.tokens()
    with pytest.raises(PlanError, match=r"\[1, 2, 59, 50\], the plan is for \[1, 2, 60, 50\]"):
        recall(query[:, :, 1:], key, case.plan(compensate=False))


def test_output_error_is_relative() -> None:
    x = normal(1, 2, 5, 4)
    torch.testing.assert_close(output_error(1.1 * x, x), torch.full((1, 2), 0.1))


@settings(max_examples=40)
@given(
    text=st.integers(0, 6),
    first=st.booleans(),
    dtype=st.sampled_from((torch.float64, torch.float32, torch.bfloat16)),
)
def test_sampled_error_is_that_of_the_drawn_video_queries(
    text: int, first: bool, dtype: torch.dtype
) -> None:
    valid = torch.tensor([text, text // 2])
    layout = VideoLayout(2, 3, 4, text=text, text_first=first, valid_text=valid)
    query, key, value, output = (
        normal(2, 3, layout.tokens, 8, seed=seed, dtype=dtype) for seed in range(4)
    )
    got = sampled_error(
        query, key, value, output, rows=5, generator=chance(1), layout=layout, scale=0.7
    )
    drawn = torch.randint(24, (5,), generator=chance(1)) + layout.video_start
    real = layout.real_tokens()
    for b, h in ((b, h) for b in range(2) for h in range(3)):
        logits = query[b, h, drawn].double() @ key[b, h].double().mT * 0.7
        if real is not None:
            logits = logits.masked_fill(~real[b], -torch.inf)
        dense = logits.softmax(dim=-1) @ value[b, h].double()
        exact = (output[b, h, drawn].double() - dense).square().sum() / dense.square().sum()
        slack = 0.1 if dtype == torch.bfloat16 else 1e-4
        assert math.isclose(float(got[b, h]), float(exact), rel_tol=slack)


def test_sampled_error_of_many_is_the_error_of_all() -> None:
    query, key, value = (normal(1, 2, 90, 8, seed=seed) for seed in range(3))
    dense = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    output = dense + 0.1 * normal(1, 2, 90, 8, seed=4)
    drawn = sampled_error(query, key, value, output, rows=4000, generator=chance(0))
    torch.testing.assert_close(drawn.sqrt(), output_error(output, dense), atol=0, rtol=0.05)
    exact = sampled_error(query, key, value, dense, rows=4, generator=chance(0))
    assert float(exact.max()) < 1e-10


@given(case=cases(), seed=st.integers(0, 99))
def test_errors_under_masks(case: Case, seed: int) -> None:
    query, key, value = case.tokens(torch.float64)
    rows = torch.randint(case.queries, (4,), generator=chance(seed))
    masks = torch.rand(2, 4, case.keys, generator=chance(seed)) < 0.5
    masks[1, :, 0] = True  # never empty
    masks[0] = False  # nothing is kept
    found = masked_errors(query, key, value, rows, masks, None)
    logits = query[:, :, rows] @ key.transpose(2, 3) / math.sqrt(case.size)
    under = logits.masked_fill(~masks[1], -torch.inf).softmax(dim=-1) @ value
    error = (under - logits.softmax(dim=-1) @ value).square().mean(dim=(2, 3))
    torch.testing.assert_close(found[1], error)
    assert bool(found[0].isinf().all())


@pytest.mark.parametrize("heads", [2, 3, 5])
def test_groups_of_heads_change_no_error(monkeypatch: pytest.MonkeyPatch, heads: int) -> None:
    query, key, value = (normal(2, 5, 30, 8, seed=seed, dtype=torch.float64) for seed in range(3))
    rows = torch.tensor([3, 29, 3])
    masks = torch.rand(2, 3, 30, generator=chance(0)) < 0.5
    masks[..., 0] = True
    alone = masked_errors(query, key, value, rows, masks, None)
    monkeypatch.setattr(quality_module, "_heads_at_a_time", lambda *_about: heads)
    torch.testing.assert_close(masked_errors(query, key, value, rows, masks, None), alone)
