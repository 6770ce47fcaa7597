import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, normal
from torch import Tensor

from svoo import co_cluster, select_blocks
from svoo.core.clustering import Clusters, CoClusters
from svoo.core.selection import (
    BudgetUnit,
    coarse_mass,
    count_kept,
    falling_order,
    keep_mass,
    least_of_best,
    sort_falling,
)
from svoo.errors import ConfigError, ShapeError


def keep_by_definition(
    mass_row: list[float],
    sizes: list[int],
    budget: float | None,
    mass: float,
    theta: float,
    unit: BudgetUnit,
) -> set[int]:
    """DESIGN's rule for one query cluster, in words of plain Python."""
    order = sorted((j for j, size in enumerate(sizes) if size), key=lambda j: -mass_row[j])
    needed, total = len(order), 0.0
    if mass < 1:
        for place, j in enumerate(order):
            total += mass_row[j]
            if total >= mass:
                needed = place + 1
                break
    if budget is None:
        return set(order[:needed])
    if unit == "tokens":
        allowed, tokens = 0, 0
        for j in order:
            tokens += sizes[j]
            if tokens > budget * sum(sizes) + 1e-3:
                break
            allowed += 1
    elif unit == "clusters":
        allowed = math.ceil(budget * len(sizes) - 1e-4)
    else:
        allowed = int(budget * len(sizes) + 1e-4)
    allowed = min(max(allowed, 1), len(order))
    return set(order[: min(needed, allowed) if budget > theta else max(needed, allowed)])


@settings(max_examples=150)
@given(
    case=cases(),
    mass=st.sampled_from((0.3, 0.9, 1.0)),
    theta=st.sampled_from((0.0, 0.1, 1.0)),
    unit=st.sampled_from(("tokens", "clusters", "whole clusters")),
    given_budgets=st.one_of(
        st.none(),
        st.lists(st.sampled_from((0.0, 0.05, 0.1, 0.3, 0.55, 1.0)), min_size=6, max_size=6),
    ),
)
def test_it_is_the_rule(
    case: Case, mass: float, theta: float, unit: BudgetUnit, given_budgets: list[float] | None
) -> None:
    query, key, _ = case.tokens(torch.float64)
    clusters = co_cluster(query, key, case.query_blocks, case.key_blocks)
    coarse = coarse_mass(clusters)
    shape = (case.batch, case.heads)
    budgets = None
    if given_budgets is not None:
        budgets = torch.tensor(given_budgets[: case.batch * case.heads], dtype=torch.float64).view(
            shape
        )
    keep = select_blocks(clusters, budgets, mass=mass, theta=theta, unit=unit)
    for b in range(case.batch):
        for h in range(case.heads):
            budget = None if budgets is None else budgets[b, h].item()
            sizes = clusters.key.sizes[b, h].tolist()
            for i in range(case.query_blocks):
                expected = keep_by_definition(
                    coarse[b, h, i].tolist(), sizes, budget, mass, theta, unit
                )
                assert set(keep[b, h, i].nonzero().flatten().tolist()) == expected


@given(case=cases())
def test_coarse_mass_is_the_exact_mass_when_every_cluster_is_one_point(case: Case) -> None:
    """Tokens that sit exactly on their centroids: the coarse softmax is the real one, summed over
    clusters."""
    points = normal(
        case.batch, case.heads, case.key_blocks, case.size, seed=case.seed, dtype=torch.float64
    )
    query = normal(
        case.batch,
        case.heads,
        case.query_blocks,
        case.size,
        seed=case.seed + 1,
        dtype=torch.float64,
    )
    labels = torch.randint(
        case.key_blocks,
        (case.batch, case.heads, case.keys),
        generator=torch.Generator().manual_seed(case.seed),
    )
    key = points.gather(2, labels.unsqueeze(-1).expand(*labels.shape, case.size))
    one_hot = torch.nn.functional.one_hot(labels, case.key_blocks).double()
    exact = (query @ key.transpose(2, 3) / math.sqrt(case.size)).softmax(dim=-1) @ one_hot
    sizes = one_hot.sum(dim=2).long()
    rows = torch.arange(case.query_blocks).expand(*labels.shape[:2], case.query_blocks)
    clusters = CoClusters(
        Clusters(rows, query, torch.ones_like(rows)), Clusters(labels, points, sizes)
    )
    torch.testing.assert_close(coarse_mass(clusters), exact)


def test_the_releases_maps() -> None:
    """theta = 1, clip, floor: the top-p set in union with the top int(clip(d) * Ck) clusters."""
    query, key = 3 * normal(1, 4, 200, 16), normal(1, 4, 300, 16, seed=1)
    clusters = co_cluster(query, key, 8, 40)
    density = torch.tensor([0.02, 0.13, 0.19, 0.60])
    low, high = 0.10, 0.15
    keep = select_blocks(
        clusters, density.clamp(low, high), mass=0.5, theta=1.0, unit="whole clusters"
    )
    coarse = coarse_mass(clusters)
    order = coarse.argsort(dim=-1, descending=True)
    ranked = coarse.gather(-1, order)
    top_p = ranked.cumsum(dim=-1) - ranked < 0.5  # the crossing cluster is kept, the first always
    floor = torch.arange(40) < (density.clamp(low, high) * 40).int().view(1, 4, 1, 1)
    expected = torch.zeros_like(keep).scatter_(-1, order, top_p | floor)
    assert torch.equal(keep, expected)


def test_mass_that_underflows_never_lets_an_empty_cluster_in() -> None:
    centres = torch.tensor([[200.0], [0.0], [0.0], [-200.0]]).view(1, 1, 4, 1)
    sizes = torch.tensor([2, 0, 0, 2]).view(1, 1, 4)
    one = Clusters(
        torch.zeros(1, 1, 3).long(), torch.full((1, 1, 1, 1), 9.0), torch.full((1, 1, 1), 3)
    )
    clusters = CoClusters(one, Clusters(torch.tensor([[[0, 0, 3, 3]]]), centres, sizes))
    keep = select_blocks(clusters, torch.tensor([1.0]), mass=1.0)
    assert keep.flatten().tolist() == [True, False, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_budget_of_theta_is_not_above_it(dtype: torch.dtype) -> None:
    query, key = normal(1, 1, 200, 8, dtype=dtype), normal(1, 1, 200, 8, seed=1, dtype=dtype)
    clusters = co_cluster(query, key, 4, 40)
    by_mass = select_blocks(clusters, mass=0.9)
    kept = select_blocks(clusters, torch.tensor([0.1]), mass=0.9, theta=0.1)
    assert bool((kept >= by_mass).all())  # the larger of the two


def test_budgets_by_head_or_by_sample() -> None:
    query, key = normal(2, 3, 60, 8), normal(2, 3, 60, 8, seed=1)
    clusters = co_cluster(query, key, 4, 10)
    by_head = torch.tensor([0.2, 0.4, 0.8])
    assert torch.equal(
        select_blocks(clusters, by_head), select_blocks(clusters, by_head.expand(2, 3))
    )


def test_bad_input() -> None:
    clusters = co_cluster(normal(2, 3, 20, 8), normal(2, 3, 20, 8), 4, 5)
    with pytest.raises(ShapeError, match=r"budgets must be \[3\] or \[2, 3\], got \[4\]"):
        select_blocks(clusters, torch.zeros(4))
    with pytest.raises(ConfigError, match="budgets"):
        select_blocks(clusters, torch.tensor([0.1, math.nan, 0.2]))
    with pytest.raises(ConfigError, match="mass"):
        select_blocks(clusters, mass=0.0)


def kept_tokens(keep: Tensor, sizes: Tensor) -> Tensor:
    return (keep * sizes.unsqueeze(2)).sum(dim=-1)


def test_a_token_budget_is_never_exceeded_above_theta() -> None:
    query, key = 2 * normal(1, 2, 300, 8), normal(1, 2, 400, 8, seed=1)
    clusters = co_cluster(query, key, 10, 60)
    keep = select_blocks(clusters, torch.tensor([0.25, 0.5]), mass=1.0)
    kept = kept_tokens(keep, clusters.key.sizes)
    assert bool((kept[:, 0] <= 100).all())
    assert bool((kept[:, 1] <= 200).all())
    assert bool((kept[:, 1] > 170).all())  # and nearly used up


@given(
    scores=st.lists(
        st.one_of(st.floats(width=32), st.sampled_from((0.0, -0.0, -1.0, 0.25))),
        min_size=1,
        max_size=40,
    )
)
def test_the_order_of_scores_is_torchs_stable_one(scores: list[float]) -> None:
    ranking = torch.tensor(scores).expand(2, 3, -1)
    expected = ranking.argsort(dim=-1, descending=True, stable=True)
    assert torch.equal(falling_order(ranking), expected)
    assert torch.equal(falling_order(ranking.double()), expected)


@given(
    weights=st.lists(st.sampled_from((0.0, 0.25, 0.5, 1.0, 2.0)), min_size=1, max_size=12),
    mass=st.sampled_from((0.0, 0.3, 0.75, 1.0)),
    least=st.integers(1, 4),
)
def test_the_heaviest(weights: list[float], mass: float, least: int) -> None:
    ranked = sorted(range(len(weights)), key=lambda place: -weights[place])
    rows = torch.tensor(weights).expand(2, 3, -1)
    for values in (rows, rows.double(), rows.bfloat16()):
        assert sort_falling(values)[1, 2].tolist() == sorted(weights, reverse=True)
        for count, weight in enumerate(sorted(weights, reverse=True), start=1):
            assert least_of_best(values, count).tolist() == [[[weight]] * 3] * 2
    heavy, before = [False] * len(weights), 0.0
    for rank, place in enumerate(ranked):
        heavy[place] = before < mass * sum(weights) or rank < least
        before += weights[place]
    assert keep_mass(rows, mass, least).tolist() == [[heavy] * 3] * 2


@pytest.mark.parametrize(
    ("sparsity", "blocks", "kept"), [(0.9, 1440, 144), (0.7, 10, 3), (1.0, 5, 1), (0.8, 24, 5)]
)
def test_how_many_blocks_a_sparsity_keeps(sparsity: float, blocks: int, kept: int) -> None:
    assert count_kept(sparsity, blocks) == kept
