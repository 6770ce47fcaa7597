from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, chance, normal
from method_checks import check_text_padding_and_odd_sizes, check_videos_are_apart, plan_of
from torch import Tensor

from svoo import BlockPlan, Call, Dense, Run, VideoLayout
from svoo.core.clustering import Clusters, CoClusters
from svoo.core.selection import select_blocks
from svoo.errors import ConfigError
from svoo.methods.svg2 import SVG2Config


def slow_labels(tokens: Tensor, start: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """k-means of one head `[N, D]` in loops; labels of the centroids before the last update."""
    centroids, labels = start.clone(), torch.zeros(len(tokens), dtype=torch.int64)
    for _ in range(iterations):
        labels = (tokens[:, None] - centroids).square().sum(dim=-1).argmin(dim=-1)
        moved = centroids.clone()
        for cluster in labels.unique().tolist():
            moved[cluster] = tokens[labels == cluster].mean(dim=0)
        if (moved - centroids).norm(dim=-1).max() < 1e-4:
            break
        centroids = moved
    return labels, centroids


def slow_keep(
    query_centroids: Tensor, key_centroids: Tensor, sizes: Tensor, mass: float, floor: float
) -> Tensor:
    """SVG2's rule for one head: drop what comes after more than `mass`, beyond the floor."""
    keep = torch.zeros(len(query_centroids), len(key_centroids), dtype=torch.bool)
    for row, centroid in enumerate(query_centroids):
        weights = sizes * (key_centroids @ centroid / len(centroid) ** 0.5).exp()
        weights = weights / weights.sum()
        before = 0.0
        for rank, column in enumerate(weights.argsort(descending=True, stable=True).tolist()):
            if sizes[column] > 0:
                keep[row, column] = before <= mass or rank < int(floor * len(sizes))
            before += float(weights[column])
    return keep


@settings(max_examples=40)
@given(
    case=cases(sizes=(3, 8)),
    iterations=st.integers(1, 4),
    mass=st.sampled_from((0.3, 0.9)),
    floor=st.sampled_from((0.0, 0.1, 0.5)),
)
def test_the_plan_is_the_slow_rule(case: Case, iterations: int, mass: float, floor: float) -> None:
    tokens = case.tokens(torch.float64)
    config = SVG2Config(
        query_clusters=case.query_blocks,
        key_clusters=case.key_blocks,
        scale_clusters=False,
        first_iterations=iterations,
        mass=mass,
        floor=floor,
    )
    plan = plan_of(config, tokens, Call(0, 0, generator=chance(case.seed)))
    assert isinstance(plan, BlockPlan)
    generator = chance(case.seed)
    starts = []
    for side, count in zip(tokens, (case.query_blocks, case.key_blocks), strict=False):
        places = torch.randint(side.shape[2], (*side.shape[:2], count), generator=generator)
        starts.append(side.gather(2, places.unsqueeze(-1).expand(-1, -1, -1, case.size)))
    mask = plan.to_dense_mask()
    found = []
    for b in range(case.batch):
        for h in range(case.heads):
            (query_labels, query_centroids), (key_labels, key_centroids) = (
                slow_labels(tokens[side][b, h], starts[side][b, h], iterations) for side in (0, 1)
            )
            sizes = key_labels.bincount(minlength=case.key_blocks)
            keep = slow_keep(query_centroids, key_centroids, sizes, mass, floor)
            found.append(keep[query_labels][:, key_labels])
    assert torch.equal(mask.flatten(0, 1), torch.stack(found))


@pytest.mark.parametrize("mass", ["0_5", "0_9", "0_98"])
@pytest.mark.parametrize("floor", ["0", "0_1", "0_25"])
def test_the_choice_is_theirs(goldens: Path, mass: str, floor: str) -> None:
    with np.load(goldens / "svg2-dynamic-map.npz") as golden:
        sides = []
        for side in "qk":
            centroids = torch.from_numpy(golden[f"{side}_centroids"])
            sizes = torch.from_numpy(golden[f"{side}_sizes"]).long()
            sides.append(Clusters(torch.empty(0), centroids, sizes))
        expected = golden[f"map_p{mass}_r{floor}"]
    # As the method asks for it.
    keep = select_blocks(
        CoClusters(*sides),
        torch.full((3,), float(floor.replace("_", "."))),
        mass=float(mass.replace("_", ".")),
        theta=1.0,
        unit="whole clusters",
    )
    assert (keep.numpy() == expected).all()


def test_text_padding_and_odd_sizes() -> None:
    check_text_padding_and_odd_sizes(SVG2Config(mass=0.5, query_clusters=3000, key_clusters=6000))


def test_videos_are_apart() -> None:
    check_videos_are_apart(SVG2Config(query_clusters=4000, mass=0.4), VideoLayout(2, 4, 5))


def test_centroids_are_kept_by_layer_and_shared_by_the_branches() -> None:
    config = SVG2Config(query_clusters=3, key_clusters=5, scale_clusters=False, dense_layers=1)
    method = config.start(Run(steps=10, layers=3))
    query, key, value = (normal(1, 2, 40, 8, seed=seed) for seed in range(3))
    shares: list[float] = []

    def call(step: int, layer: int, branch: str) -> Call:
        return Call(step, layer, branch=branch, count=lambda _phase, share: shares.append(share))

    dense = [method.plan(query, key, value, call(step, 0, "cond")) for step in (1, 5)]
    assert all(isinstance(one, Dense) and one.planned for one in dense)
    assert "first 2 of 10 steps" in dense[0].reason and method.state_bytes == 0  # type: ignore[union-attr]
    for layer in (1, 2):
        for branch in ("cond", "uncond"):
            method.plan(query, key, value, call(2, layer, branch))
    assert method.state_bytes == 2 * 2 * (3 + 5) * 8 * 4
    first, second = shares[0], shares[1]
    assert second <= 2 * 8 / 40 < first  # the second branch goes on from the first's centroids


def test_settings_of_the_models() -> None:
    wan, image, hunyuan = (
        SVG2Config.for_model(name)
        for name in ("wan2.1-t2v-14b", "wan2.1-i2v-14b", "hunyuanvideo-t2v")
    )
    assert (wan.dense_steps, image.dense_steps, hunyuan.dense_steps) == (0.2, 0.35, 0.1)
    assert (wan.query_clusters, hunyuan.query_clusters) == (300, 400)
    assert wan.mass == 0.9 and wan.floor == 0.1 and wan.dense_layers == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"query_clusters": 0},
        {"key_clusters": 2.5},
        {"iterations": 0},
        {"first_iterations": 0},
        {"mass": 0.0},
        {"mass": 1.1},
        {"floor": -0.1},
        {"scale_clusters": 1},
    ],
)
def test_bad_settings(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        SVG2Config(**bad)
