import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, normal
from method_checks import check_text_padding_and_odd_sizes, check_videos_are_apart, plan_of
from torch import Tensor

from svoo import Call, Corrected, Dense, Run, VideoLayout, run_plan
from svoo.core import metric_kmeans
from svoo.errors import ConfigError
from svoo.methods.sparsepr import SparsePRConfig


def golden_of(goldens: Path) -> dict[str, Tensor]:
    with np.load(goldens / "sparsepr-4x10x12-error.npz") as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored if name != "meta_json"}


def test_the_first_call_is_theirs(goldens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = golden_of(goldens)
    query, key, value = (golden[name].float() for name in "qkv")
    starts = iter((golden["k_init_indices"], golden["q_init_indices"]))

    def draw(tokens: Tensor, count: int, *_chance_and_heads: object) -> Tensor:
        places = next(starts).view(1, 1, count, 1)
        return tokens.gather(2, places.expand(1, 1, count, tokens.shape[3]))

    monkeypatch.setattr(metric_kmeans, "draw_with_replacement", draw)
    config = SparsePRConfig(density=0.3, query_clusters=24, key_clusters=32, probes=16, rank=4,
                            first_iterations=5, scale_clusters=False)  # fmt: skip
    found = plan_of(config, (query, key, value))
    assert isinstance(found, Corrected) and found.extra == pytest.approx(16 / 480)
    assert torch.equal(found.plan.query_blocks()[0].int(), golden["q_labels"])
    assert torch.equal(found.plan.key_blocks()[0].int(), golden["k_labels"])
    assert torch.equal(found.plan.keep, golden["keep"])
    output, lse = run_plan(query, key, value, found.plan, return_lse=True)
    assert lse is not None
    torch.testing.assert_close(output, golden["sparse_output"], rtol=0, atol=2e-6)
    torch.testing.assert_close(found.correct(output, lse), golden["output"], rtol=0, atol=2e-6)


@settings(max_examples=25)
@given(case=cases(sizes=(3, 8)))
def test_every_query_cluster_keeps_as_many_keys(case: Case) -> None:
    config = SparsePRConfig(density=0.4, query_clusters=case.query_blocks,
                            key_clusters=case.key_blocks, probes=2, first_iterations=3,
                            scale_clusters=False)  # fmt: skip
    found = plan_of(config, case.tokens())
    assert isinstance(found, Corrected)
    probes = min(2, case.query_blocks)
    limit = max(1, math.ceil((0.4 - probes / case.queries) * case.keys))
    plan = found.plan
    largest = plan.key_sizes.amax(dim=-1, keepdim=True)
    kept = plan.kept_keys()
    assert bool((kept >= limit).all()) and bool((kept < limit + largest).all())


@settings(max_examples=20)
@given(
    case=cases(sizes=(3, 8)),
    score=st.sampled_from(("error", "mass")),
    density=st.sampled_from((0.2, 0.5)),
)
def test_the_choice_is_the_slow_rule(
    case: Case, score: Literal["error", "mass"], density: float
) -> None:
    query, key, value = case.tokens(torch.float64)
    config = SparsePRConfig(density=density, query_clusters=case.query_blocks, score=score,
                            key_clusters=case.key_blocks, probes=2, first_iterations=3,
                            scale_clusters=False)  # fmt: skip
    found = plan_of(config, (query, key, value))
    assert isinstance(found, Corrected)
    probes = min(2, case.query_blocks)
    limit = max(1, math.ceil((density - probes / case.queries) * case.keys))
    labels = found.plan.query_blocks(), found.plan.key_blocks()
    for b in range(case.batch):
        for h in range(case.heads):
            for i in labels[0][b, h].unique().tolist():
                centroid = query[b, h, labels[0][b, h] == i].mean(dim=0) * case.size**-0.5
                scores, sizes = {}, {}
                for j in labels[1][b, h].unique().tolist():
                    own = labels[1][b, h] == j
                    k, v = key[b, h, own], value[b, h, own]
                    weights, sizes[j] = (k @ centroid).exp(), len(k)
                    mean = (k.mean(dim=0) @ centroid).exp() * v.mean(dim=0)
                    error = float((weights.unsqueeze(-1) * v - mean).square().sum()) / len(k)
                    scores[j] = error if score == "error" else float(weights.sum())
                kept, tokens = set(), 0
                for j in sorted(scores, key=lambda j, s=scores: -s[j]):  # type: ignore[misc]
                    if tokens < limit:  # the last one may overshoot
                        kept.add(j)
                        tokens += sizes[j]
                single = {j for j in sizes if sizes[j] == 1 and score == "error"}
                there = set(found.plan.keep[b, h, i].nonzero().flatten().tolist()) & set(sizes)
                # Single tokens have no error, so that rounding gives their order.
                assert there - single == kept - single


def test_text_is_paid_for() -> None:
    tokens = [normal(1, 2, 200, 8, seed=s) for s in range(3)]
    config = SparsePRConfig(density=0.5, query_clusters=4000, key_clusters=20000, probes=8)
    kept = []
    for text in (0, 60):
        call = Call(0, 0, VideoLayout(2, 10, 10, text=text))
        found = plan_of(config, tokens, call)
        assert isinstance(found, Corrected)
        kept.append(float(found.plan.kept_keys().float().mean()))
    assert kept[0] - kept[1] == pytest.approx(0.54 * 60, abs=6)


def test_scores_differ_and_later_calls_go_on() -> None:
    query, key, value = (normal(1, 2, 300, 8, seed=s) for s in range(3))
    masks: list[Tensor] = []
    scores: tuple[Literal["error", "mass"], ...] = ("error", "mass")
    for score in scores:
        config = SparsePRConfig(score=score, query_clusters=3000, key_clusters=9000)
        method = config.always_sparse().start(Run(steps=3))
        shares: list[float] = []

        def count(phase: str, share: float, shares: list[float] = shares) -> None:
            if phase == "clustering":
                shares.append(share)

        for step in range(2):
            found = method.plan(query, key, value, Call(step, 0, count=count))
            assert isinstance(found, Corrected)
            masks.append(found.plan.to_dense_mask())
        assert sum(shares[:2]) == pytest.approx(12.5 * sum(shares[2:]))  # 25 rounds, then 2
        assert method.state_bytes == 2 * (64 + 36) * 8 * 4  # as many query clusters as probes
    assert not torch.equal(masks[0], masks[2])


def test_text_padding_and_odd_sizes() -> None:
    check_text_padding_and_odd_sizes(SparsePRConfig(probes=8, key_clusters=6000))


def test_videos_are_apart() -> None:
    check_videos_are_apart(SparsePRConfig(probes=4, key_clusters=9000), VideoLayout(2, 4, 5))


def test_settings_of_the_models() -> None:
    hunyuan, wan = (SparsePRConfig.for_model(n) for n in ("hunyuanvideo-t2v", "wan2.2-i2v-a14b"))
    assert (hunyuan.dense_steps, hunyuan.score) == (0.1, "error")
    assert (wan.dense_steps, wan.score) == (0.2, "mass")
    tokens = normal(1, 1, 10, 4)
    decision = hunyuan.start(Run(steps=10)).plan(tokens, tokens, tokens, Call(0, 0))
    assert isinstance(decision, Dense) and decision.planned


@pytest.mark.parametrize(
    "bad", [{"density": 0.0}, {"query_clusters": 0}, {"probes": 0}, {"rank": 0}, {"score": "x"},
            {"first_iterations": 0}, {"scale_clusters": 0}],
)  # fmt: skip
def test_bad_settings(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        SparsePRConfig(**bad)
