import pytest
import torch
from making import chance, normal
from synthetic import clustered_tokens

from svoo.core.features import FEATURES, find_features, k_means_labels
from svoo.core.kmeans import k_means


def test_features_are_main_axes_and_scaled_values() -> None:
    query, key, value = (normal(2, 3, 400, 24, seed=s) for s in range(3))
    key = key * torch.linspace(0.1, 3, 24) + 5
    features = find_features(query, key, 100 * value)
    assert [part.shape for part in features] == [(2, 3, 400, FEATURES)] * 2
    for tokens, part, count in ((query, features[0], 16), (key, features[1], 12)):
        sample = tokens[1, 2, ::8].double()
        axes = torch.linalg.svd(sample - sample.mean(dim=0)).Vh[:count]
        exact = (tokens[1, 2].double() - sample.mean(dim=0)) @ axes.mT
        got = part[1, 2, :, :count].double()
        torch.testing.assert_close(got.abs(), exact.abs(), atol=2e-3, rtol=2e-3)
    sample = features[1][:, :, ::8]
    spreads = [
        part.var(dim=2, correction=0).sum(dim=-1).sqrt() for part in sample.split((12, 4), -1)
    ]
    torch.testing.assert_close(spreads[1], 0.7 * spreads[0])


@pytest.mark.parametrize("size", [1, 3, 13])
def test_fewer_axes_than_features_are_filled_up(size: int) -> None:
    tokens = normal(1, 1, 40, size)
    query, key = find_features(tokens, tokens, torch.zeros_like(tokens))
    assert query.shape[-1] == key.shape[-1] == FEATURES
    assert not bool(key[..., 12:].any()) and bool(torch.isfinite(key).all())
    labels = k_means_labels(tokens, tokens, tokens, 2, 4)
    assert labels[0].shape == (1, 1, 40) and int(labels[1].max()) < 4


def test_labels_are_nearly_those_of_all_axes() -> None:
    query, key, value = clustered_tokens(1, 2, 600, 32, generator=chance(0))
    labels = k_means_labels(query, key, 1e-3 * value, 8, 12, iterations=6)
    full = k_means(query, key, 8, 12, iterations=6)
    for tokens, own, other, count in (
        (query, labels[0], full.query.labels, 8),
        (key, labels[1], full.key.labels, 12),
    ):
        spreads = []
        for each in (own, other):
            one_hot = torch.nn.functional.one_hot(each, count).float()
            means = one_hot.mT @ tokens / one_hot.sum(dim=2).clamp(min=1).unsqueeze(-1)
            spreads.append(float((tokens - one_hot @ means).square().sum()))
        assert spreads[0] < 1.3 * spreads[1]


def test_old_labels_are_where_it_begins() -> None:
    query, key, value = clustered_tokens(1, 2, 400, 32, generator=chance(0))
    first = k_means_labels(query, key, value, 6, 10, iterations=30)
    again = k_means_labels(query, key, value, 6, 10, labels=(first[0].short(), first[1].short()))
    for one, two in zip(first, again, strict=True):
        assert float((one == two).float().mean()) > 0.99
    other = k_means_labels(query, key, value, 6, 10, generator=chance(5))
    assert float((first[1] == other[1]).float().mean()) < 0.9
