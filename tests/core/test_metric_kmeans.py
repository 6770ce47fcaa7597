"""k-means in a metric is k-means of the projected tokens; what is kept are means of raw ones."""

import torch
from making import chance, normal
from torch import Tensor

from svoo.core.kmeans import group_by_distance
from svoo.core.metric_kmeans import MetricKMeans

TURN = normal(6, 3, seed=9, dtype=torch.float64)


def project(tokens: Tensor) -> Tensor:
    return tokens @ TURN


def means(tokens: Tensor, labels: Tensor, before: Tensor) -> Tensor:
    """Means of raw tokens, cluster by cluster; an empty one keeps its centroid."""
    found = before.clone()
    for b in range(tokens.shape[0]):
        for h in range(tokens.shape[1]):
            for c in labels[b, h].unique().tolist():
                found[b, h, c] = tokens[b, h, labels[b, h] == c].mean(dim=0)
    return found


def test_the_first_call_begins_at_tokens_and_later_ones_go_on() -> None:
    first, second = (normal(1, 2, 40, 6, seed=seed, dtype=torch.float64) for seed in (0, 1))
    state = MetricKMeans(first_iterations=4, iterations=1)
    assert state.nbytes == 0
    seen = state.cluster(first, project, 5, [0], chance(3))
    places = torch.randint(40, (1, 2, 5), generator=chance(3)).unsqueeze(-1)
    start = first.gather(2, places.expand(-1, -1, -1, 6))
    made = group_by_distance(project(first), project(start), 4).clusters
    assert seen.rounds == 4 and torch.equal(seen.clusters.labels, made.labels)
    torch.testing.assert_close(seen.features, project(first))
    kept = means(first, made.labels, start)
    torch.testing.assert_close(seen.clusters.centroids, kept)
    later = state.cluster(second, project, 5, [0], chance(4))
    made = group_by_distance(project(second), project(kept), 1).clusters
    assert later.rounds == 1 and torch.equal(later.clusters.labels, made.labels)
    torch.testing.assert_close(later.clusters.centroids, means(second, made.labels, kept))
    assert state.nbytes == 2 * 5 * 6 * 8
    assert state.cluster(second, project, 4, [0], chance(4)).rounds == 4  # another number: anew


def test_samples_of_a_video_begin_alike_and_its_last_is_remembered() -> None:
    tokens = normal(4, 1, 30, 6, seed=2, dtype=torch.float64)
    state = MetricKMeans(first_iterations=2)
    found = state.cluster(tokens, project, 4, [0, 1, 0, 1], chance(1)).clusters
    assert state.centroids is not None
    assert torch.equal(state.centroids, found.centroids[2:])
    alone = MetricKMeans(first_iterations=2)
    alike = alone.cluster(tokens[:1].expand(2, -1, -1, -1), project, 4, [0, 0], chance(1))
    assert torch.equal(alike.clusters.labels[0], alike.clusters.labels[1])
