from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, normal
from method_checks import check_text_padding_and_odd_sizes, check_videos_are_apart, plan_of

from svoo import BlockPlan, Call, Dense, Run, VideoLayout, run_plan
from svoo.core.clustering import CoClusters, from_sorted
from svoo.core.kmeans import group_by_distance
from svoo.core.plan import plan_from_clusters
from svoo.core.sorting import sort_sides
from svoo.errors import ConfigError
from svoo.methods.adacluster import AdaClusterConfig, keep_best, score_clusters

Score = Literal["quest", "mass"]


@settings(max_examples=40)
@given(case=cases(sizes=(3, 8)), score=st.sampled_from(("quest", "mass")), count=st.integers(1, 9))
def test_the_choice_is_the_slow_rule(case: Case, score: Score, count: int) -> None:
    query, key, _ = case.tokens(torch.float64)
    plan = case.plan(compensate=False)
    counts = case.query_blocks, case.key_blocks
    clusters = from_sorted(
        query, key, *sort_sides((plan.query_blocks(), plan.key_blocks()), counts)
    )
    found = keep_best(score_clusters(clusters, score, None), clusters, count)
    for b in range(case.batch):
        for h in range(case.heads):
            sizes = clusters.key.sizes[b, h]
            filled = [j for j in range(case.key_blocks) if sizes[j] > 0]
            for i, centroid in enumerate(clusters.query.centroids[b, h]):
                values = {}
                for j in filled:
                    products = (centroid * clusters.key.centroids[b, h, j]).tolist()
                    logit = sum(products) / case.size**0.5 + float(sizes[j].log())
                    values[j] = sum(p for p in products if p > 0) if score == "quest" else logit
                best = sorted(filled, key=lambda j: -values[j])[:count]
                assert set(found[b, h, i].nonzero().flatten().tolist()) == set(best)


@pytest.mark.parametrize(("score", "name"), [("quest", "minmax_k6"), ("mass", "mass_k6")])
def test_clusters_choice_and_output_are_theirs(goldens: Path, score: Score, name: str) -> None:
    with np.load(goldens / "adacluster-4x10x12.npz") as stored:
        golden = {name: torch.from_numpy(stored[name]) for name in stored if name != "meta_json"}
    query, key, value = (golden[name].float() for name in "qkv")
    sides = []
    for side, tokens in (("q", query), ("k", key)):
        start = tokens.index_select(2, golden[f"{side}_init_indices"])
        made = group_by_distance(tokens, start, 3, empty_to_zero=True).clusters
        assert torch.equal(made.labels.int(), golden[f"{side}_labels"])
        torch.testing.assert_close(made.centroids, golden[f"{side}_centroids"], rtol=0, atol=2e-6)
        sides.append(made)
    clusters = CoClusters(*sides)
    keep = keep_best(score_clusters(clusters, score, None), clusters, 6)
    filled = (clusters.key.sizes > 0).unsqueeze(2)
    assert torch.equal(keep, golden[f"keep__{name}"] & filled)
    output = run_plan(query, key, value, plan_from_clusters(clusters, keep, compensate=False))
    torch.testing.assert_close(output, golden[f"output__{name}"], rtol=0, atol=5e-4)


def test_counts_shrink_together_and_later_calls_go_on() -> None:
    tokens = [normal(1, 2, 200, 8, seed=s) for s in range(3)]
    config = AdaClusterConfig(query_clusters=3000, key_clusters=9450, keep=1890)  # 25, 5
    plan = plan_of(config, tokens)
    assert isinstance(plan, BlockPlan) and plan.keep.shape[2:] == (8, 25)
    assert int(plan.keep.sum(dim=-1).max()) == 5
    shares: list[float] = []
    method = config.start(Run(steps=3))
    for step in range(2):
        call = Call(step, 0, count=lambda _phase, share: shares.append(share))
        assert not isinstance(method.plan(tokens[0], tokens[1], tokens[2], call), Dense)
    assert shares == pytest.approx([3 * 33 / 200, 33 / 200])
    assert method.state_bytes == 2 * 33 * 8 * 4


SMALL = AdaClusterConfig(query_clusters=3000, key_clusters=6000, keep=2000)


def test_text_padding_and_odd_sizes() -> None:
    check_text_padding_and_odd_sizes(SMALL)


def test_videos_are_apart() -> None:
    check_videos_are_apart(SMALL, VideoLayout(2, 4, 5))


def test_settings_of_the_models() -> None:
    hunyuan, wan = (AdaClusterConfig.for_model(n) for n in ("hunyuanvideo-t2v", "wan2.1-t2v-14b"))
    assert (hunyuan.keep, hunyuan.score, hunyuan.dense_layers) == (94, "quest", 18)
    assert (wan.keep, wan.score, wan.dense_steps, wan.dense_layers) == (128, "mass", 0.0, 0)
    tokens = normal(1, 1, 10, 4)
    decision = hunyuan.start(Run(steps=30)).plan(tokens, tokens, tokens, Call(7, 20))
    assert isinstance(decision, Dense) and "8 of 30" in decision.reason


@pytest.mark.parametrize(
    "bad", [{"query_clusters": 0}, {"keep": 0}, {"keep": 2000}, {"score": "minmax"},
            {"iterations": 0}, {"scale_clusters": "no"}],
)  # fmt: skip
def test_bad_settings(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        AdaClusterConfig(**bad)
