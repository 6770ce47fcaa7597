"""Few numbers per token for k-means: the main axes of queries, of keys, and of values beside keys.

Labels from 16 numbers per token are as good as from all of them, at a fraction of the price.
"""

from __future__ import annotations

import torch
from torch import Tensor

from svoo.core.validate import accumulation_dtype

QUERY_AXES = 16
KEY_AXES, VALUE_AXES = 12, 4
VALUE_SHARE = 0.7  # the spread of the values' axes, in that of the keys'
_EVERY = 8  # axes are found on every so many tokens


def main_axes(tokens: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` directions of largest variance of tokens `[B, H, N, D]`, `[B, H, D,
    count]`, and the standard deviation of all axes together, `[B, H]`."""
    sample = tokens[:, :, ::_EVERY].to(accumulation_dtype(tokens))
    sample = sample - sample.mean(dim=2, keepdim=True)
    covariance = sample.transpose(2, 3) @ sample / sample.shape[2]
    values, vectors = torch.linalg.eigh(covariance)
    spread = values.clamp(min=0).sum(dim=-1).sqrt()
    return vectors.flip(-1)[..., : min(count, tokens.shape[3])], spread


def query_features(query: Tensor) -> Tensor:
    """Return queries `[B, H, N, D]` on their main axes, `[B, H, N, F]`."""
    axes, _ = main_axes(query, QUERY_AXES)
    return query.to(axes.dtype) @ axes


def key_features(key: Tensor, value: Tensor) -> Tensor:
    """Return keys `[B, H, M, D]` on their main axes beside values on theirs, `[B, H, M, F]`.

    Values are scaled to `VALUE_SHARE` of the keys' spread.
    """
    key_axes, key_spread = main_axes(key, KEY_AXES)
    value_axes, value_spread = main_axes(value, VALUE_AXES)
    smallest = torch.finfo(value_spread.dtype).tiny
    scale = VALUE_SHARE * key_spread / value_spread.clamp(min=smallest)
    values = value.to(value_axes.dtype) @ value_axes * scale[..., None, None]
    return torch.cat((key.to(key_axes.dtype) @ key_axes, values), dim=-1)
