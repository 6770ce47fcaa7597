"""Clusters by a few features of the tokens: the labels of the far field at half the price."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from svoo.core.axes import main_axes
from svoo.core.balanced import split_evenly
from svoo.core.clustering import (
    Implementation,
    assign_tokens,
    centred,
    choose_implementation,
    first_alike,
    start_centroids,
    update_centroids,
)
from svoo.core.far_field import find_moments
from svoo.core.random import seeded
from svoo.core.sorting import SortedLabels
from svoo.core.validate import accumulation_dtype, inference_only
from svoo.kernels.cpp import features as cpp

FEATURES = 16
KEY_FEATURES = 12  # the other features of a key are its value's
VALUE_SHARE = 0.7  # of the keys' spread
_EVERY, _MANY = 8, 1024  # axes are found from every 8th token where there are many, else all
ROUNDS = 6  # of the search for axes in C++


@inference_only
def k_means_labels(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_clusters: int,
    key_clusters: int,
    *,
    iterations: int = 1,
    old: tuple[SortedLabels, SortedLabels] | None = None,
    generator: torch.Generator | None = None,
    implementation: Implementation = "auto",
) -> tuple[Tensor, Tensor]:
    """Return labels int64 `[B, H, N]`, `[B, H, M]` of query `[B, H, N, D]` and key, value `[B, H,
    M, D]` by k-means on `find_features`.

    Starts from the fresh centroids of old labels, else from tokens that the generator draws.
    """
    by = choose_implementation(query, implementation)
    features = find_features(query, key, value, implementation=implementation)
    counts, initial = (query_clusters, key_clusters), None
    if old is not None:
        query_means, key_means = (
            find_moments(points, *side, by=by).mean
            for points, side in zip(features, old, strict=True)
        )
        initial = query_means, key_means
    centroids = start_centroids(*features, *counts, iterations, initial, generator, check=False)
    sides = zip(features, centroids, strict=True)
    queries, keys = (_nearest(tokens, start, iterations, by) for tokens, start in sides)
    return queries, keys


def _nearest(tokens: Tensor, centroids: Tensor, iterations: int, by: Implementation) -> Tensor:
    """Return the labels of `core.kmeans`, without the update after the last of the iterations."""
    labels = _assign(tokens, centroids, by)
    for _ in range(iterations - 1):
        centroids = update_centroids(tokens, labels, centroids, by=by).centroids
        labels = _assign(tokens, centroids, by)
    return labels


def _assign(tokens: Tensor, centroids: Tensor, by: Implementation) -> Tensor:
    # argmin |x - c|^2 = argmax <x, c> - |c|^2 / 2
    bias = -0.5 * centroids.square().sum(dim=-1)
    labels = assign_tokens(tokens, centred(centroids), bias, by=by)
    return first_alike(centroids, labels) if by == "torch" else labels


@inference_only
def equal_labels(
    query: Tensor, key: Tensor, value: Tensor, query_clusters: int, key_clusters: int
) -> tuple[Tensor, Tensor]:
    """Return labels int64 `[B, H, N]`, `[B, H, M]` of clusters of equal size, but perhaps the
    last, by splits of `find_features`: as many clusters as asked for, or fewer."""
    features = find_features(query, key, value, implementation="torch")  # widest axis first
    query_labels, key_labels = (
        split_evenly(points, -(-points.shape[2] // count), turn=False).labels()
        for points, count in zip(features, (query_clusters, key_clusters), strict=True)
    )
    return query_labels, key_labels


def find_features(
    query: Tensor, key: Tensor, value: Tensor, *, implementation: Implementation = "auto"
) -> tuple[Tensor, Tensor]:
    """Return FEATURES numbers for each query and each key, `[B, H, N, 16]` and `[B, H, M, 16]`.

    A query's are its distances from the mean along 16 axes at right angles that the queries vary
    most on; a key's 12 such, and 4 of its value, scaled to VALUE_SHARE of the keys' spread. Zeros
    where tokens have fewer axes. Axes come from every 8th of many tokens: in torch by `main_axes`,
    in C++ by ROUNDS rounds of orthogonal iteration from random ones of a fixed seed. These span
    nearly what the main axes do, and k-means sees distances, to which the choice of axes inside
    that space is nothing.
    """
    if choose_implementation(query, implementation) == "cpp":
        return cpp.find_features(
            query,
            key,
            value,
            torch.randn(query.shape[3], FEATURES, generator=seeded()),
            key_features=KEY_FEATURES,
            every=(_stride(query), _stride(key)),
            rounds=ROUNDS,
            value_share=VALUE_SHARE,
        )
    sides = query, key, value
    samples = [side[:, :, :: _stride(side)].to(accumulation_dtype(side)) for side in sides]
    means = [sample.mean(dim=2, keepdim=True) for sample in samples]
    moments = [_moment(sample - mean) for sample, mean in zip(samples, means, strict=True)]
    axes = main_axes(torch.stack(moments), FEATURES)
    counts = FEATURES, KEY_FEATURES, FEATURES - KEY_FEATURES
    queries, keys, values = (
        _project(side, mean, own, count)
        for side, mean, own, count in zip(sides, means, axes, counts, strict=True)
    )
    key_spread, value_spread = (_spread(part) for part in (keys, values))
    factor = VALUE_SHARE * key_spread / value_spread.where(value_spread > 0, 1)
    return queries, torch.cat((keys, values * factor), dim=-1)


def _moment(centred: Tensor) -> Tensor:
    return centred.mT @ centred


def _project(tokens: Tensor, mean: Tensor, axes: Tensor, count: int) -> Tensor:
    """Return tokens `[B, H, N, D]` less their mean `[B, H, 1, D]` along the first `count` of axes
    `[B, H, D, F]`."""
    axes = axes[..., :count]
    found = tokens.to(axes.dtype) @ axes - mean @ axes
    return pad(found, (0, count - found.shape[-1]))


def _stride(tokens: Tensor) -> int:
    return _EVERY if tokens.shape[2] >= _MANY else 1


def _spread(features: Tensor) -> Tensor:
    """Return the root of the summed variances of features `[B, H, N, F]`, `[B, H, 1, 1]`, of the
    tokens that axes are found from."""
    sample = features[:, :, :: _stride(features)]
    return sample.var(dim=2, correction=0).sum(dim=-1).sqrt()[..., None, None]
