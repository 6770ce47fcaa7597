"""Probes, exact rows and the fit, each against loops in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, normal
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo import VideoLayout, add_text, run_plan
from svoo.core.repair import Probes, choose_probes, complete_rows, exact_rows, repair_output


@settings(max_examples=40)
@given(case=cases(sizes=(2, 5)), count=st.integers(1, 8))
def test_probes_are_the_nearest_to_the_means_of_the_largest_blocks(case: Case, count: int) -> None:
    features = case.tokens(torch.float64)[0]
    plan = case.plan(compensate=False)
    blocks, sizes = plan.query_blocks(), plan.query_sizes
    probes = choose_probes(features, blocks, sizes, count)
    assert probes.rows.shape[2] == min(count, case.query_blocks)
    for b in range(case.batch):
        for h in range(case.heads):
            ranked = sorted(range(case.query_blocks), key=lambda c: -int(sizes[b, h, c]))[:count]
            counts = torch.tensor([float(sizes[b, h, c]) for c in ranked])
            expected = counts / counts[counts > 0].mean()
            torch.testing.assert_close(probes.weights[b, h].float(), expected)
            for place, block in enumerate(ranked):
                own = (blocks[b, h] == block).nonzero().flatten()
                if len(own):
                    distance = (features[b, h, own] - features[b, h, own].mean(0)).norm(dim=-1)
                    chosen = (own == probes.rows[b, h, place]).nonzero()
                    # Of two tokens both are as near to the mean, but for rounding.
                    assert float(distance[chosen]) <= float(distance.min()) + 1e-12


def test_of_equal_tokens_the_first_speaks() -> None:
    features, blocks = torch.ones(1, 1, 6, 3), torch.tensor([[[1, 1, 0, 0, 0, 3]]])
    probes = choose_probes(features, blocks, torch.tensor([[[3, 2, 0, 1]]]), 4)
    assert probes.rows[0, 0, :3].tolist() == [2, 0, 5]
    assert probes.weights.flatten().tolist() == [1.5, 1.0, 0.5, 0.0]


@settings(max_examples=25)
@given(case=cases(max_tokens=24, sizes=(3, 8)), text=st.integers(0, 4), first=st.booleans())
def test_completed_rows_are_exact_with_text_too(case: Case, text: int, first: bool) -> None:
    queries = min(case.queries, case.keys)
    blocks = min(case.query_blocks, queries), min(case.key_blocks, queries)
    case = Case(case.batch, case.heads, queries, queries, case.size, *blocks, case.seed)
    layout = VideoLayout(1, 1, queries, text=text, text_first=first)
    shape = (case.batch, case.heads, layout.tokens, case.size)
    query, key, value = (normal(*shape, seed=case.seed + s, dtype=torch.float64) for s in range(3))
    plan = case.plan(compensate=False)
    output, lse = run_plan(
        query, key, value, add_text(plan, layout), backend="reference", return_lse=True
    )
    assert lse is not None
    video = [layout.video_part(side) for side in (query, key, value)]
    rows = torch.arange(queries).flip(0).expand(case.batch, case.heads, queries)
    found = complete_rows(
        video[0], video[1], video[2], plan, rows, layout.video_part(output),
        lse.narrow(2, layout.video_start, queries),
    )  # fmt: skip
    dense = layout.video_part(scaled_dot_product_attention(query, key, value))
    torch.testing.assert_close(found, dense.flip(2))
    if text == 0:
        torch.testing.assert_close(exact_rows(query, key, value, rows), dense.flip(2))


def slow_repair(x_all: Tensor, rows: Tensor, weights: Tensor, exact: Tensor, rank: int) -> Tensor:
    """One head, in float64, the regression in its primal form."""
    x = x_all[rows]
    share = weights / weights.sum()
    mean = (share[:, None] * x).sum(0)
    spread = (share[:, None] * (x - mean) ** 2).sum(0).sqrt().clamp(min=1e-5)
    y = exact - x
    mean_y = (share[:, None] * y).sum(0)
    standard, weight = (x - mean) / spread, torch.diag(weights)
    ridge = 0.1 * torch.eye(x.shape[1]).double()
    fit = torch.linalg.solve(
        standard.T @ weight @ standard + ridge, standard.T @ weight @ (y - mean_y)
    )
    _, _, right = torch.linalg.svd(weights.sqrt()[:, None] * (y - mean_y))
    basis = right[:rank]
    repaired: Tensor = x_all + ((x_all - mean) / spread) @ fit @ basis.T @ basis + mean_y
    repaired[rows] = exact
    return repaired


@pytest.mark.parametrize(("probes", "rank"), [(1, 4), (5, 2), (12, 3), (12, 99)])
def test_the_fit(probes: int, rank: int) -> None:
    output = normal(2, 3, 40, 6, dtype=torch.float64)
    rows = torch.stack([torch.randperm(40, generator=torch.Generator().manual_seed(s))[:probes]
                        for s in range(6)]).view(2, 3, probes)  # fmt: skip
    weights = normal(2, 3, probes, seed=1, dtype=torch.float64).abs() + 0.1
    exact = normal(2, 3, probes, 6, seed=2, dtype=torch.float64)
    found = repair_output(output, Probes(rows, weights), exact, rank=rank)
    for b in range(2):
        for h in range(3):
            expected = slow_repair(output[b, h], rows[b, h], weights[b, h], exact[b, h], rank)
            torch.testing.assert_close(found[b, h], expected)


def test_an_affine_error_of_low_rank_is_undone() -> None:
    right = normal(1, 1, 500, 8, dtype=torch.float64)
    damage = 0.5 * normal(8, 1, seed=1, dtype=torch.float64) @ normal(1, 8, seed=2).double()
    output = right + right @ damage + 3
    rows = torch.arange(0, 500, 5).view(1, 1, 100)
    probes = Probes(rows, torch.ones(1, 1, 100).double())
    repaired = repair_output(output, probes, right[:, :, ::5], rank=8, ridge=1e-6)
    assert float((repaired - right).norm() / right.norm()) < 1e-3
    single = Probes(rows, torch.ones(1, 1, 100))
    narrow = repair_output(output.bfloat16(), single, right[:, :, ::5].float(), rank=8)
    assert narrow.dtype == torch.bfloat16
