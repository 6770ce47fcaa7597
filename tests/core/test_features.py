import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, chance, normal
from synthetic import clustered_tokens
from torch import Tensor
from torch.nn.functional import pad

from svoo.core.clustering import Implementation
from svoo.core.features import FEATURES, ROUNDS, equal_labels, find_features, k_means_labels
from svoo.core.kmeans import k_means
from svoo.core.sorting import sort_sides

on_every_implementation = pytest.mark.parametrize(
    "by", ["torch", pytest.param("cpp", marks=pytest.mark.compiler)]
)


@on_every_implementation
def test_features_are_main_axes_and_scaled_values(by: Implementation) -> None:
    query, key, value = (normal(2, 3, 1200, 24, seed=s) for s in range(3))
    falling = torch.logspace(0, -1.5, 24)
    query, key, value = query * falling, key * falling.flip(0) + 5, 100 * value * falling
    features = find_features(query, key, value, implementation=by)
    assert [part.shape for part in features] == [(2, 3, 1200, FEATURES)] * 2
    parts = features[0], features[1][..., :12], features[1][..., 12:]
    for tokens, part in zip((query, key, value), parts, strict=True):
        sample = tokens[1, 2, ::8].double()
        widths = torch.linalg.svd(sample - sample.mean(dim=0)).S.square()
        own = part[1, 2, ::8].double()
        assert float(own.mean(dim=0).abs().max()) < 1e-3 * float(own.std(dim=0).max())
        if tokens is not value:
            best = float(widths[: part.shape[-1]].sum())
            assert 0.98 * best < float(own.square().sum()) < 1.001 * best
            # Axes at right angles: no distance grows.
            own, whole = (side[1, 2, ::4].double() for side in (part, tokens))
            assert bool((torch.cdist(own, own) <= torch.cdist(whole, whole) * 1.0001 + 1e-4).all())
    spreads = [part[:, :, ::8].var(dim=2, correction=0).sum(dim=-1).sqrt() for part in parts[1:]]
    torch.testing.assert_close(spreads[1], 0.7 * spreads[0], atol=0, rtol=1e-4)


def by_definition(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel's features of few tokens, of which all are looked at."""
    start = torch.randn(query.shape[3], FEATURES, generator=torch.Generator().manual_seed(0))

    def project(tokens: Tensor, count: int) -> Tensor:
        rest = tokens - tokens.mean(dim=2, keepdim=True)
        axes = start[:, : min(count, tokens.shape[3])].to(rest)
        for _ in range(ROUNDS):
            axes = torch.linalg.qr(rest.mT @ rest @ axes).Q
        return pad(rest @ axes, (0, count - axes.shape[1]))

    keys, values = project(key, 12), project(value, 4)
    wide, narrow = (side.square().sum(dim=(2, 3), keepdim=True).sqrt() for side in (keys, values))
    return project(query, 16), torch.cat((keys, 0.7 * wide / narrow.clamp(min=1e-30) * values), -1)


@pytest.mark.compiler
@settings(max_examples=60)
@given(
    case=cases(max_tokens=70, sizes=(1, 5, 16, 24, 40)),
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
    rank=st.sampled_from((1, 3, 40)),
)
def test_the_kernel_is_the_definition(case: Case, dtype: torch.dtype, rank: int) -> None:
    """Distances in the space that both search from the same start; float64 is the definition."""
    tokens = [part.clone() for part in case.tokens(dtype)]
    for part in tokens:
        part[..., rank:] = 0
    rows = [part.transpose(1, 2).contiguous().transpose(1, 2) for part in tokens]
    found = find_features(rows[0], rows[1], rows[2], implementation="cpp")
    exact = by_definition(*(part.double() for part in tokens))
    for own, wanted in zip(found, exact, strict=True):
        width = float(wanted.square().sum(dim=-1).max().sqrt())
        torch.testing.assert_close(
            own.double() @ own.double().mT, wanted @ wanted.mT, atol=5e-3 * width**2 + 1e-9, rtol=0
        )


@on_every_implementation
def test_labels_are_those_of_k_means(by: Implementation) -> None:
    query, key, value = clustered_tokens(1, 2, 300, 32, generator=chance(0))
    for iterations in (1, 3):
        got = k_means_labels(
            query, key, value, 8, 12, iterations=iterations, generator=chance(3), implementation=by
        )
        features = find_features(query, key, value, implementation=by)
        full = k_means(
            *features, 8, 12, iterations=iterations, generator=chance(3), implementation=by
        )
        assert torch.equal(got[0], full.query.labels) and torch.equal(got[1], full.key.labels)


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
    again = k_means_labels(query, key, value, 6, 10, old=sort_sides(first, (6, 10)))
    for one, two in zip(first, again, strict=True):
        assert float((one == two).float().mean()) > 0.99
    other = k_means_labels(query, key, value, 6, 10, generator=chance(5))
    assert float((first[1] == other[1]).float().mean()) < 0.9


@pytest.mark.parametrize(("tokens", "clusters", "most"), [(200, 4, 50), (201, 4, 51), (7, 7, 1)])
def test_equal_clusters_are_equal(tokens: int, clusters: int, most: int) -> None:
    query, key, value = clustered_tokens(2, 2, tokens, 16, generator=chance(0))
    labels = equal_labels(query, key, value, clusters, clusters)
    for side in labels:
        sizes = torch.stack([(side == label).sum(dim=-1) for label in range(clusters)], dim=-1)
        assert sizes.sum(dim=-1).unique().tolist() == [tokens]
        assert bool((sizes[..., :-1] == most).all())


def test_equal_clusters_are_tighter_than_chance() -> None:
    query, key, value = clustered_tokens(1, 2, 600, 32, generator=chance(0))
    labels = equal_labels(query, key, value, 12, 12)[0]
    mixed = labels[..., torch.randperm(600, generator=chance(1))]
    spreads = []
    for each in (labels, mixed):
        one_hot = torch.nn.functional.one_hot(each, 12).float()
        means = one_hot.mT @ query / one_hot.sum(dim=2).unsqueeze(-1)
        spreads.append(float((query - one_hot @ means).square().sum()))
    assert spreads[0] < 0.7 * spreads[1]
