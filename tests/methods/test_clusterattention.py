import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases
from method_checks import check_text_padding_and_odd_sizes, check_videos_are_apart, plan_of

from svoo import BlockPlan, VideoLayout, make_plan, run_plan
from svoo.core.balanced import split_evenly
from svoo.errors import ConfigError
from svoo.methods.clusterattention import ClusterAttentionConfig, in_each_others_metric


@settings(max_examples=30)
@given(
    case=cases(sizes=(3, 8)), blocks=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    keep=st.sampled_from((0.1, 0.25, 0.5, 1.0)),
)  # fmt: skip
def test_the_choice_is_the_slow_rule(case: Case, blocks: tuple[int, int], keep: float) -> None:
    query, key, value = case.tokens(torch.float64)
    config = ClusterAttentionConfig(
        keep=keep, query_block=blocks[0], key_block=blocks[1], exact_variance=True
    )
    plan = plan_of(config, (query, key, value))
    assert isinstance(plan, BlockPlan)
    metrics = in_each_others_metric(query, key)
    sides = [split_evenly(side, block) for side, block in zip(metrics, blocks, strict=True)]
    for b in range(case.batch):
        for h in range(case.heads):
            parts = [side.order[b, h].split(list(side.sizes)) for side in sides]
            mask = torch.zeros(case.queries, case.keys, dtype=torch.bool)
            for rows in parts[0]:
                scores = [
                    float(query[b, h, rows].mean(0) @ key[b, h, columns].mean(0))
                    for columns in parts[1]
                ]
                ranked = sorted(range(len(scores)), key=lambda j: -scores[j])
                for j in ranked[: math.ceil(keep * len(scores))]:
                    mask[rows[:, None], parts[1][j]] = True
            assert torch.equal(plan.to_dense_mask()[b, h], mask)


@settings(max_examples=20)
@given(case=cases(sizes=(3, 8)))
def test_the_metrics(case: Case) -> None:
    """Distances in the metric are what the other side sees of a difference."""
    query, key, _ = case.tokens(torch.float64)
    seen_queries, seen_keys = in_each_others_metric(query, key)
    difference = (key[:, :, 0] - key[:, :, -1]).unsqueeze(-1)
    expected = (query @ difference).square().mean(dim=(2, 3))
    found = (seen_keys[:, :, 0] - seen_keys[:, :, -1]).square().sum(dim=-1)
    torch.testing.assert_close(found, expected)
    centred = key - key.mean(dim=2, keepdim=True)
    pair = query[:, :, :1] @ centred.transpose(2, 3)
    other = query[:, :, -1:] @ centred.transpose(2, 3)
    cosine = (pair * other).sum(-1) / (pair.norm(dim=-1) * other.norm(dim=-1)).clamp(min=1e-30)
    if case.keys > 1:
        found = (seen_queries[:, :, :1] * seen_queries[:, :, -1:]).sum(dim=-1)
        torch.testing.assert_close(found, cosine)


def test_it_is_our_reading_of_the_paper(goldens: Path) -> None:
    with np.load(goldens / "clusterattention-8x16x16.npz") as stored:
        golden = {name: torch.from_numpy(stored[name]) for name in stored if name != "meta_json"}
    tokens = [golden[name].float() for name in "qkv"]
    parts = [golden[f"{side}_{part}"].unsqueeze(0)
             for part in ("order", "sizes") for side in ("query", "key")]  # fmt: skip
    expected = BlockPlan(parts[0], parts[1], parts[2], parts[3], golden["keep"])
    query, key, value = tokens
    plan = make_plan(query, key, value, ClusterAttentionConfig(exact_variance=True))
    assert torch.equal(plan.to_dense_mask(), expected.to_dense_mask())
    output = run_plan(query, key, value, plan)
    torch.testing.assert_close(output, golden["output"], rtol=0, atol=2e-6)


SMALL = ClusterAttentionConfig(query_block=8, key_block=16)


def test_text_padding_and_odd_sizes() -> None:
    check_text_padding_and_odd_sizes(SMALL)


def test_videos_are_apart() -> None:
    check_videos_are_apart(SMALL, VideoLayout(2, 4, 5))


def test_settings_of_the_models() -> None:
    config = ClusterAttentionConfig.for_model("wan2.1-t2v-14b")
    assert (config.dense_steps, config.dense_layers, config.compensate) == (0.2, 1, "mean")


@pytest.mark.parametrize(
    "bad", [{"keep": 0.0}, {"keep": 1.5}, {"query_block": 0}, {"key_block": 1.5},
            {"exact_variance": 1}],
)  # fmt: skip
def test_bad_settings(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        ClusterAttentionConfig(**bad)
