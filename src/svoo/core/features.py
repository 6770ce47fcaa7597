"""k-means on a few features of the tokens: the labels of the far field at half the price."""

from __future__ import annotations

import torch
from torch import Tensor

from svoo.core.clustering import from_labels
from svoo.core.kmeans import k_means
from svoo.core.validate import accumulation_dtype, inference_only

FEATURES = 16
KEY_FEATURES = 12  # the other features of a key are its value's
VALUE_SHARE = 0.7  # of the keys' spread
_EVERY = 8  # token that the axes are found from


@inference_only
def k_means_labels(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_clusters: int,
    key_clusters: int,
    *,
    iterations: int = 1,
    labels: tuple[Tensor, Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Return labels int64 `[B, H, N]`, `[B, H, M]` of query `[B, H, N, D]` and key, value `[B, H,
    M, D]` by k-means on `find_features`.

    Starts from the fresh centroids of given labels, else from tokens that the generator draws.
    """
    features = find_features(query, key, value)
    initial = None
    if labels is not None:
        old = from_labels(*features, *labels, (query_clusters, key_clusters))
        initial = old.query.centroids, old.key.centroids
    clusters = k_means(
        *features,
        query_clusters,
        key_clusters,
        iterations=iterations,
        initial=initial,
        generator=generator,
        check=False,
    )
    return clusters.query.labels, clusters.key.labels


def find_features(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return FEATURES numbers for each query and each key, `[B, H, N, 16]` and `[B, H, M, 16]`.

    A query's are its distances from the mean along the 16 main axes of the queries; a key's 12
    such, and 4 of its value, scaled to VALUE_SHARE of the keys' spread. Zeros where tokens have
    fewer axes. Axes come from every 8th token.
    """
    queries = _project(query, FEATURES)
    keys = _project(key, KEY_FEATURES)
    values = _project(value, FEATURES - KEY_FEATURES)
    key_spread, value_spread = (_spread(part) for part in (keys, values))
    factor = VALUE_SHARE * key_spread / value_spread.where(value_spread > 0, 1)
    return queries, torch.cat((keys, values * factor), dim=-1)


def _project(tokens: Tensor, count: int) -> Tensor:
    """Return tokens `[B, H, N, D]` less their mean along `count` axes that they vary most on."""
    dtype = accumulation_dtype(tokens)
    sample = tokens[:, :, ::_EVERY].to(dtype)
    mean = sample.mean(dim=2, keepdim=True)
    sample = sample - mean
    axes = torch.linalg.eigh(sample.transpose(2, 3) @ sample).eigenvectors.flip(-1)[..., :count]
    found = tokens.to(dtype) @ axes - mean @ axes
    return torch.nn.functional.pad(found, (0, count - found.shape[-1]))


def _spread(features: Tensor) -> Tensor:
    """Return the root of the summed variances of features `[B, H, N, F]`, `[B, H, 1, 1]`; of every
    8th token."""
    sample = features[:, :, ::_EVERY]
    return sample.var(dim=2, correction=0).sum(dim=-1).sqrt()[..., None, None]
