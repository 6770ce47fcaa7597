from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import torch
from making import normal
from synthetic import clustered_tokens
from torch import Tensor

from svoo import BlockPlan, LabelState, SVOOConfig, co_cluster, make_plan, run_plan
from svoo.core import clustering, sorting
from svoo.core import plan as plan_module
from svoo.core.random import seeded
from svoo.methods.base import Call, Run
from svoo.methods.svoo.labels import cluster_counts


def test_labels_are_reused_until_they_are_old_and_only_for_their_shape() -> None:
    query, key = normal(1, 2, 30, 8), normal(1, 2, 40, 8, seed=1)
    state = LabelState(step=3)
    assert state.reuse(query, key, 5) is None
    made = co_cluster(query, key, 3, 4)
    state.remember(made)
    state.step = 7
    again = state.reuse(-query, key, 5)
    assert again is not None and torch.equal(again.query.labels, made.query.labels)
    assert state.reuse(query[:, :, 1:], key, 5) is None
    state.step = 8
    assert state.reuse(query, key, 5) is None


def test_samples_of_one_video_take_its_labels() -> None:
    query, key = normal(1, 2, 30, 8), normal(1, 2, 40, 8, seed=1)
    state = LabelState()
    made = co_cluster(query, key, 3, 4)
    state.remember(made)
    both = state.reuse(query.repeat(2, 1, 1, 1), key.repeat(2, 1, 1, 1), 1, [0, 0])
    assert both is not None
    assert torch.equal(both.key.labels, made.key.labels.repeat(2, 1, 1))


@pytest.fixture
def sorts(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The labels that were sorted, in their order."""
    seen: list[Tensor] = []

    def count(labels: Tensor, blocks: int) -> sorting.SortedLabels:
        seen.append(labels)
        return sort(labels, blocks)

    sort = sorting.sort_labels
    for module in (sorting, clustering, plan_module):
        monkeypatch.setattr(module, "sort_labels", count)
    return seen


@pytest.mark.parametrize("kind", ["kmeans", "co", "balanced"])
@pytest.mark.parametrize("make", [SVOOConfig, SVOOConfig.mean_terms])
def test_labels_are_sorted_once(
    sorts: list[Tensor], make: Callable[[], SVOOConfig], kind: Literal["kmeans", "co", "balanced"]
) -> None:
    """Both sides when they are made; not by the other branch, nor by later steps, nor by k-means
    that goes on from them; plans are what sorting at every call would give."""
    config = replace(make().always_sparse(), clustering=kind, recluster_every=2, densest=1.0)
    method = config.start(Run(steps=4, layers=1, heads=2))
    tokens = [clustered_tokens(1, 2, 640, 16, generator=seeded(seed)) for seed in range(2)]
    for step, made in enumerate((2, 2, 4, 4)):
        for branch, (query, key, value) in zip(("cond", "uncond"), tokens, strict=True):
            plan = method.plan(query, key, value, Call(step, 0, branch=branch))
            assert len(sorts) == made
            assert isinstance(plan, BlockPlan)
            for labels, order in zip(sorts[-2:], (plan.query_order, plan.key_order), strict=True):
                assert order is not None and torch.equal(
                    order, labels.argsort(dim=-1, stable=True)
                )


def test_equal_clusters_fill_tiles() -> None:
    config = SVOOConfig(clustering="balanced")
    side = torch.empty(1, 1, 75_600, 8, device="meta")
    assert cluster_counts(config, side, side) == (591, 1182)
    asked = replace(config, query_clusters=7, key_clusters=900)
    assert cluster_counts(asked, side, side) == (7, 900)


@pytest.mark.parametrize(
    "config", [SVOOConfig.paper(), replace(SVOOConfig.balanced(), densest=1.0)]
)
def test_equal_clusters_in_both_modes(config: SVOOConfig) -> None:
    """All blocks are whole, some are left out, and any backend runs them."""
    tokens = clustered_tokens(2, 2, 640, 16, generator=seeded(0))
    config = replace(config.always_sparse(), clustering="balanced")
    plan = make_plan(*tokens, config)
    assert plan.query_sizes.unique().tolist() == [128]
    assert plan.key_sizes.unique().tolist() == [64]
    assert float(plan.density().mean()) < 0.95
    expected = run_plan(*tokens, plan, backend="reference")
    torch.testing.assert_close(run_plan(*tokens, plan), expected, atol=1e-4, rtol=1e-4)
