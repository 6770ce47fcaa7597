"""Settings that the k-means methods share are checked by name; clusters go on from the last
ones, for every layer apart."""

import pytest
import torch
from making import normal

from svoo import Call, Run
from svoo.errors import ConfigError
from svoo.methods.k_means import KMeansConfig, KMeansMethod


@pytest.mark.parametrize(
    "name", ["query_clusters", "key_clusters", "first_iterations", "iterations"]
)
def test_counts_below_one_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a whole number >= 1, got 0"):
        KMeansConfig(**{name: 0})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="scale_clusters must be True or False"):
        KMeansConfig(scale_clusters=1)  # type: ignore[arg-type]


def test_counts_shrink_with_the_tokens_of_their_side() -> None:
    query, key = torch.zeros(1, 1, 756, 4), torch.zeros(1, 1, 7560, 4)
    assert KMeansConfig().cluster_counts(query, key) == (3, 100)
    assert KMeansConfig(scale_clusters=False).cluster_counts(query, key) == (300, 1000)


def test_layers_have_centroids_of_their_own_and_later_calls_few_iterations() -> None:
    config = KMeansConfig(
        query_clusters=3, key_clusters=5, first_iterations=4, iterations=1, scale_clusters=False
    )
    method = KMeansMethod(config, Run(steps=4, layers=2, heads=2))
    query, key = normal(1, 2, 40, 8, seed=0), normal(1, 2, 40, 8, seed=1)
    work: list[float] = []
    assert method.state_bytes == 0
    sizes = []
    for step, layer in ((0, 0), (0, 1), (1, 0)):
        call = Call(step, layer, count=lambda _phase, share: work.append(share))
        clusters = method.cluster(query, key, call)
        assert clusters.query.sizes.sum(dim=-1).tolist() == [[40, 40]]
        sizes.append(method.state_bytes)
    assert work == pytest.approx([4 * 8 / 40, 4 * 8 / 40, 8 / 40])
    assert sizes == [2 * 8 * 8 * 4, 2 * 2 * 8 * 8 * 4, 2 * 2 * 8 * 8 * 4]
