"""k-means from given centroids against loops in float64, its stop, and its memory. (The two-sided
`k_means` is tested beside co-clustering.)"""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, chance, normal
from torch import Tensor

from svoo.core.clustering import Implementation
from svoo.core.kmeans import WarmKMeans, draw_with_replacement, group_by_distance


def slow(
    tokens: Tensor, centroids: Tensor, iterations: int, tolerance: float, *, to_zero: bool
) -> tuple[Tensor, Tensor, int]:
    """Several heads `[P, N, D]` at once: labels, centroids, rounds."""
    labels = torch.zeros(tokens.shape[:2])
    for number in range(1, iterations + 1):
        distance = (tokens[:, :, None] - centroids[:, None]).square().sum(dim=-1)
        labels = distance.argmin(dim=-1)
        moved = centroids.clone()
        for head in range(len(tokens)):
            for cluster in range(centroids.shape[1]):
                own = tokens[head][labels[head] == cluster]
                if len(own) or to_zero:
                    moved[head, cluster] = own.mean(dim=0) if len(own) else 0
        if (moved - centroids).norm(dim=-1).max() < tolerance:
            return labels, centroids, number
        centroids = moved
    return labels, centroids, iterations


@settings(max_examples=60)
@given(
    case=cases(),
    iterations=st.integers(1, 12),
    tolerance=st.sampled_from((0.0, 1e-4, 0.5)),
    to_zero=st.booleans(),
)
def test_it_is_the_slow_form(case: Case, iterations: int, tolerance: float, to_zero: bool) -> None:
    tokens = case.tokens(torch.float64)[0]
    start = tokens[:, :, torch.arange(case.query_blocks) // 2]  # in pairs: some begin empty
    found = group_by_distance(
        tokens, start, iterations, tolerance=tolerance, empty_to_zero=to_zero
    )
    flat = tokens.flatten(0, 1), start.flatten(0, 1)
    labels, centroids, rounds = slow(*flat, iterations, tolerance, to_zero=to_zero)
    assert found.rounds == rounds
    assert torch.equal(found.clusters.labels.flatten(0, 1), labels)
    torch.testing.assert_close(found.clusters.centroids.flatten(0, 1), centroids)
    counts = torch.nn.functional.one_hot(labels, case.query_blocks).sum(dim=1)
    assert torch.equal(found.clusters.sizes.flatten(0, 1), counts)


@pytest.mark.parametrize("name", ["svg2-kmeans", "svg2-kmeans-ties"])
@pytest.mark.parametrize("implementation", ["cpp", "torch"])
def test_it_is_svg2s(goldens: Path, name: str, implementation: Implementation) -> None:
    with np.load(goldens / f"{name}.npz") as golden:
        tokens = torch.from_numpy(golden["x"]).unsqueeze(1)
        start = torch.from_numpy(golden["init_centroids"]).unsqueeze(1)
        for count in (1, 2, 50):
            if f"labels_it{count}" not in golden:
                continue
            made = group_by_distance(
                tokens,
                start,
                count,
                tolerance=float(golden["tol"]),
                implementation=implementation,
            )
            assert made.rounds == golden[f"n_iter_it{count}"]
            assert (made.clusters.labels[:, 0].numpy() == golden[f"labels_it{count}"]).all()
            assert (made.clusters.sizes[:, 0].numpy() == golden[f"sizes_it{count}"]).all()
            expected = torch.from_numpy(golden[f"centroids_it{count}"])
            torch.testing.assert_close(made.clusters.centroids[:, 0], expected)


def test_a_device_that_is_seldom_looked_at_gives_the_same() -> None:
    tokens = normal(1, 2, 200, 4, dtype=torch.float64)
    stopped = group_by_distance(tokens, tokens[:, :, :5], 60, tolerance=1e-3)
    # Rounds after the stop change nothing, as on a device that is not waited for.
    assert stopped.rounds < 60
    again = group_by_distance(tokens, stopped.clusters.centroids, 1, tolerance=1e-3)
    assert torch.equal(again.clusters.labels, stopped.clusters.labels)
    assert torch.equal(again.clusters.centroids, stopped.clusters.centroids)


def test_random_tokens_are_tokens_and_differ_by_head() -> None:
    tokens = normal(2, 3, 7, 4)
    drawn = draw_with_replacement(tokens, 20, chance(0))
    assert drawn.shape == (2, 3, 20, 4)
    places = (drawn.unsqueeze(3) == tokens.unsqueeze(2)).all(dim=-1)
    assert places.any(dim=-1).all()
    chosen = places.int().argmax(dim=-1).flatten(0, 1)
    assert len(chosen.unique(dim=0)) == 6 and len(chosen[0].unique()) > 3


def test_later_calls_go_on_from_the_last_centroids() -> None:
    state = WarmKMeans(first_iterations=3, iterations=1)
    query, key = normal(1, 2, 50, 4), normal(1, 2, 60, 4, seed=1)
    first, work = state.cluster(query, key, (4, 6), [0], chance(0))
    assert work == pytest.approx(3 * 4 / 60 + 3 * 6 / 50)
    assert state.nbytes == 2 * (4 + 6) * 4 * 4
    second, work = state.cluster(query, key, (4, 6), [0], chance(1))
    assert work == pytest.approx(4 / 60 + 6 / 50)
    expected = group_by_distance(key, first.key.centroids, 1).clusters
    assert torch.equal(second.key.labels, expected.labels)
    other, _ = state.cluster(query[:, :, 1:], key, (3, 6), [0], chance(0))  # another count
    assert other.query.centroids.shape[2] == 3


def test_samples_of_one_video_begin_alike_and_the_last_is_remembered() -> None:
    state = WarmKMeans(first_iterations=1, iterations=1)
    query, key = normal(4, 1, 30, 4), normal(4, 1, 30, 4, seed=1)
    videos = [0, 1, 0, 1]
    first, _ = state.cluster(query, key, (3, 5), videos, chance(0))
    start = draw_with_replacement(query[:2], 3, chance(0))[videos]
    expected = group_by_distance(query, start, 1).clusters
    assert torch.equal(first.query.labels, expected.labels)
    assert torch.equal(state.centroids["key"], first.key.centroids[2:])
    second, _ = state.cluster(query, key, (3, 5), videos, chance(0))
    expected = group_by_distance(key, first.key.centroids[[2, 3, 2, 3]], 1).clusters
    assert torch.equal(second.key.labels, expected.labels)
    one, _ = state.cluster(query[:1], key[:1], (3, 5), [0], chance(0))  # other videos: anew
    assert one.query.labels.shape == (1, 1, 30)
