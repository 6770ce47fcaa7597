import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, normal

from svoo import co_cluster
from svoo.errors import ShapeError
from svoo.kernels.cpp.clusters import assign, update_centroids

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("fresh_memory_is_nan")]
dtypes = st.sampled_from((torch.float32, torch.bfloat16))


@settings(max_examples=100)
@given(case=cases(max_tokens=300, sizes=(1, 5, 32, 64)), dtype=dtypes)
def test_no_other_score_is_higher(case: Case, dtype: torch.dtype) -> None:
    query, weights, _ = case.tokens()
    tokens = query.to(dtype)
    bias = -0.5 * weights.square().sum(dim=-1)
    labels = assign(tokens, weights, bias)
    scores = tokens.double() @ weights.double().mT + bias.double().unsqueeze(2)
    chosen = scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    assert labels.dtype == torch.int64
    reach = tokens.double().norm(dim=-1) * weights.double().norm(dim=-1).amax(-1, keepdim=True)
    assert bool((chosen >= scores.amax(dim=-1) - 2e-6 * (reach + bias.abs().amax())).all())


@pytest.mark.parametrize("clusters", [1, 7, 8, 37])
def test_the_first_of_equals_wins(clusters: int) -> None:
    """Small whole numbers round nowhere and make many ties."""
    tokens = normal(2, 3, 500, 16).mul(2).round()
    weights = normal(2, 3, clusters, 16, seed=1).sign()
    weights[:, :, clusters // 2 :] = weights[:, :, : clusters - clusters // 2]
    scores = tokens @ weights.mT
    first = (scores == scores.amax(dim=-1, keepdim=True)).int().argmax(dim=-1)
    assert torch.equal(assign(tokens, weights), first)


@pytest.mark.parametrize("size", [1, 3, 5, 17, 33])
@pytest.mark.parametrize("count", [1, 16, 50])
def test_a_row_of_odd_size_ends_before_the_next(size: int, count: int) -> None:
    """Two numbers are taken at a time: behind the last one there must be a zero."""
    weights = torch.ones(1, 1, 8, size)
    weights[:, :, 1::2] = -torch.inf
    weights[:, :, 6] = 2
    labels = assign(torch.ones(1, 1, count, size), weights)
    assert torch.equal(labels, torch.full((1, 1, count), 6))


@settings(max_examples=100)
@given(case=cases(max_tokens=200), dtype=dtypes)
def test_means_and_sizes(case: Case, dtype: torch.dtype) -> None:
    tokens, old, _ = case.tokens()
    tokens = tokens.to(dtype)
    plan = case.plan(compensate=False)
    labels = plan.query_blocks()
    old = old[:, :, :1].expand(-1, -1, case.query_blocks, -1)
    means, sizes = update_centroids(tokens, labels, old)
    assert torch.equal(sizes, plan.query_sizes)
    for b, h in itertools.product(range(case.batch), range(case.heads)):
        for cluster in range(case.query_blocks):
            members = tokens[b, h][labels[b, h] == cluster]
            wanted = members.float().mean(dim=0) if len(members) else old[b, h, cluster]
            torch.testing.assert_close(means[b, h, cluster], wanted, atol=1e-5, rtol=1e-5)


def test_the_old_centroids_stay_as_they_were() -> None:
    tokens, labels, old = normal(1, 1, 9, 4), torch.zeros(1, 1, 9).long(), normal(1, 1, 2, 4)
    before = old.clone()
    means, sizes = update_centroids(
        tokens.transpose(2, 3).contiguous().transpose(2, 3), labels, old
    )
    assert torch.equal(old, before)
    assert sizes.tolist() == [[[9, 0]]]
    torch.testing.assert_close(means[0, 0, 0], tokens[0, 0].mean(dim=0))
    assert torch.equal(means[0, 0, 1], old[0, 0, 1])


def test_columns_are_read_as_rows() -> None:
    tokens, weights = normal(1, 2, 30, 8), normal(1, 2, 5, 8, seed=1)
    assert torch.equal(assign(tokens.mT.contiguous().mT, weights), assign(tokens, weights))


def test_labels_that_do_not_fit_are_refused() -> None:
    tokens, old = normal(1, 1, 9, 4), normal(1, 1, 2, 4)
    with pytest.raises(ShapeError, match=r"from 0 to 1, got \[1, 1, 9\] from 2 to 2"):
        update_centroids(tokens, torch.full((1, 1, 9), 2), old)
    with pytest.raises(ShapeError, match=r"got \[1, 1, 8\]"):
        update_centroids(tokens, torch.zeros(1, 1, 8, dtype=torch.int64), old)


def test_autocast_changes_no_label() -> None:
    query, key = normal(1, 1, 500, 32), normal(1, 1, 400, 32, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        clusters = co_cluster(query, key, 8, 20, iterations=1)
    plain = co_cluster(query, key, 8, 20, iterations=1)
    assert torch.equal(clusters.key.labels, plain.key.labels)
