"""How many clusters a number of tokens has."""

from __future__ import annotations

import math

_FULL_SIZE_TOKENS = 75_600  # the paper's 720p clip, where it takes 256 and 1024 clusters


def default_clusters(tokens: int, fineness: float = 1.0) -> tuple[int, int]:
    """Return the query and key cluster counts for a number of tokens: 256 and 1024 at 75,600,
    fewer below, times `fineness`."""
    query, key = (scale_clusters(fineness * count, tokens) for count in (256, 1024))
    return query, key


def far_fineness(tokens: int) -> float:
    """Return how much finer the far field's clusters are than the paper's: 3.5 times up to 7,488
    tokens, where that was chosen, as fine from 75,600 on, and in between by a power of the tokens.

    Blocks of queries grow from 84 tokens to 295 and of keys from 21 to 74, so that they fill a
    GPU's tiles: 256 x 1,024 clusters are among the cheapest at equal error in the static model of
    `tools.tile_fill`. The pass of query means over all keys, whose share of dense is Cq / N, gets
    cheaper as kept pairs do.
    """
    small, large = 7488, _FULL_SIZE_TOKENS
    part = math.log(min(max(tokens, small), large) / small) / math.log(large / small)
    return math.pow(3.5, 1 - part)


def scale_clusters(count: float, tokens: int) -> int:
    """Return the number of clusters for a number of tokens: `count` from 75,600 tokens on, fewer
    in proportion below, at least 1, never more than there are tokens."""
    return min(tokens, max(1, round(count * min(1.0, tokens / _FULL_SIZE_TOKENS))))
