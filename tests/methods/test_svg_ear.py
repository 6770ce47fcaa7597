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
from torch import Tensor

from svoo import BlockPlan, MeanTerms, VideoLayout, make_plan, run_plan
from svoo.core.block_errors import log_block_errors
from svoo.core.clustering import CoClusters, from_sorted
from svoo.core.kmeans import group_by_distance
from svoo.core.plan import plan_from_clusters
from svoo.core.sorting import sort_sides
from svoo.errors import ConfigError
from svoo.methods.svg_ear import SVGEARConfig, select_by_error


def slow_row(mass: Tensor, errors: Tensor, sizes: list[int], config: SVGEARConfig) -> set[int]:
    """What one query cluster keeps, as the rule is written."""
    blocks = range(len(sizes))
    by_mass = sorted(blocks, key=lambda j: (-float(mass[j]), j))
    count, covered = 0, 0.0
    while count < len(sizes) and covered < config.mass:
        covered += float(mass[by_mass[count]])
        count += 1
    if config.floor > 0:
        count = max(count, 1, int(2 * config.floor * len(sizes)))
    kept = set(by_mass[: max(1, int(config.floor * len(sizes)))])
    left = sum(sizes[j] for j in by_mass[:count]) - sum(sizes[j] for j in kept)

    def rank(j: int) -> float:
        error = float(errors[j])
        return math.log(error) - config.gamma * math.log(sizes[j]) if error > 0 else -math.inf

    for j in sorted((j for j in blocks if j not in kept), key=lambda j: (-rank(j), j)):
        if left > 0:
            kept.add(j)
            left -= sizes[j]
    return {j for j in kept if sizes[j] > 0}


def random_clusters(case: Case) -> CoClusters:
    query, key, _ = case.tokens(torch.float64)
    plan = case.plan(compensate=False)
    counts = case.query_blocks, case.key_blocks
    return from_sorted(query, key, *sort_sides((plan.query_blocks(), plan.key_blocks()), counts))


@settings(max_examples=40)
@given(
    case=cases(sizes=(3, 8)),
    mass=st.sampled_from((0.2, 0.6, 0.9)),
    floor=st.sampled_from((0.0, 0.1, 0.3)),
    gamma=st.sampled_from((0.0, 1.0)),
)
def test_the_choice_is_the_slow_rule(case: Case, mass: float, floor: float, gamma: float) -> None:
    clusters = random_clusters(case)
    _, key, value = case.tokens(torch.float64)
    config = SVGEARConfig(mass=mass, floor=floor, gamma=gamma)
    found = select_by_error(clusters, key, value, config, None)
    scale = case.size**-0.5
    for b in range(case.batch):
        for h in range(case.heads):
            sizes = clusters.key.sizes[b, h]
            for i, centroid in enumerate(clusters.query.centroids[b, h] * scale):
                logits = clusters.key.centroids[b, h] @ centroid
                coarse = (logits + sizes.log()).softmax(dim=-1)
                errors = torch.zeros(case.key_blocks).double()
                for j in range(case.key_blocks):
                    own = clusters.key.labels[b, h] == j
                    if int(sizes[j]) > 1:  # one token is its own mean
                        v = value[b, h, own]
                        parts = (key[b, h, own] @ centroid).exp().unsqueeze(-1) * v
                        errors[j] = (parts - logits[j].exp() * v.mean(0)).square().sum()
                expected = slow_row(coarse, errors, sizes.tolist(), config)
                kept = set(found[b, h, i].nonzero().flatten().tolist())
                single = {j for j in range(case.key_blocks) if int(sizes[j]) == 1}
                # Blocks without an error are all last, in whatever order rounding gives them.
                assert kept - single == expected - single


@pytest.mark.parametrize(("mass", "floor"), [(0.9, 0.1), (0.4, 0.15)])
def test_clusters_choice_and_output_are_theirs(goldens: Path, mass: float, floor: float) -> None:
    with np.load(goldens / "ear-4x10x12.npz") as stored:
        golden = {name: torch.from_numpy(stored[name]) for name in stored if name != "meta_json"}
    query, key, value = (golden[name].float() for name in "qkv")
    sides = []
    for name, tokens in (("q", query), ("k", key)):
        places = golden[f"{name}_init_indices"].unsqueeze(0).unsqueeze(-1)
        start = tokens.gather(2, places.expand(-1, -1, -1, tokens.shape[3]))
        sides.append(group_by_distance(tokens, start, 4, tolerance=1e-4).clusters)
        assert torch.equal(sides[-1].labels[0].int(), golden[f"{name}_labels"])
    clusters = CoClusters(*sides)
    case = f"p{mass}_r{floor}"
    keep = select_by_error(clusters, key, value, SVGEARConfig(mass=mass, floor=floor), None)
    assert torch.equal(keep, golden[f"keep__{case}"])
    areas = clusters.query.sizes.unsqueeze(-1) * clusters.key.sizes.unsqueeze(-2)
    errors = log_block_errors(clusters, key, value).clamp(min=math.log(1e-8))  # as theirs
    torch.testing.assert_close(
        errors - areas.log(), golden[f"efficiency__{case}"], rtol=0, atol=2e-5
    )
    output = run_plan(query, key, value, plan_from_clusters(clusters, keep, compensate=True))
    torch.testing.assert_close(output, golden[f"output__{case}"], rtol=0, atol=2e-6)


def test_left_out_blocks_are_means() -> None:
    case = Case(2, 2, 120, 120, 8, 1, 1, 0)
    config = SVGEARConfig(query_clusters=6000, key_clusters=9000, mass=0.4)
    tokens = case.tokens()
    plan = plan_of(config, tokens)
    assert isinstance(plan, BlockPlan) and 0 < float(plan.density().mean()) < 1
    assert isinstance(make_plan(*tokens, config).terms, MeanTerms)


def test_text_padding_and_odd_sizes() -> None:
    config = SVGEARConfig(mass=0.4, query_clusters=3000, key_clusters=6000)
    check_text_padding_and_odd_sizes(config)


def test_videos_are_apart() -> None:
    check_videos_are_apart(SVGEARConfig(query_clusters=4000, mass=0.4), VideoLayout(2, 4, 5))


def test_settings_of_the_models() -> None:
    config = SVGEARConfig.for_model("hunyuanvideo-t2v")
    assert (config.query_clusters, config.dense_steps, config.compensate) == (400, 0.1, "mean")
    assert SVGEARConfig.for_model("wan2.1-i2v-14b").dense_steps == 0.35


@pytest.mark.parametrize(
    "bad",
    [
        {"query_clusters": 0},
        {"iterations": 0},
        {"mass": 0.0},
        {"floor": 1.5},
        {"gamma": -1.0},
        {"scale_clusters": None},
    ],
)
def test_bad_settings(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        SVGEARConfig(**bad)
