"""The paper's example of coupling, looked for among real tokens: two queries, four keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_QUERIES, _KEYS = 48, 400  # sampled
_CORNERS = ((1.0, 1.0), (1.0, -1.0), (-1.0, -1.0), (-1.0, 1.0))


@dataclass(frozen=True)
class Example:
    """Logits of sampled keys for two queries, in standard deviations, and four of the keys: the
    first two and the last two go together for the first query, the outer two and the inner two for
    the second. `margin` is the least distance of the four from both middles."""

    layer: int
    head: int
    first: list[float]
    second: list[float]
    keys: list[int]
    margin: float


def find_example(query: Tensor, key: Tensor, layer: int, chance: torch.Generator) -> Example:
    """Return the clearest example among sampled tokens of query and key `[1, H, N, D]`."""
    best = None
    for head in range(query.shape[1]):
        queries, keys = (
            side[0, head, torch.randperm(side.shape[2], generator=chance)[:count].to(side.device)]
            for side, count in ((query, _QUERIES), (key, _KEYS))
        )
        logits = (queries.double() @ keys.double().T).cpu()
        logits = logits - logits.mean(dim=1, keepdim=True)
        logits = logits / logits.std(dim=1, correction=0, keepdim=True).clamp(min=1e-12)
        for first in range(len(logits)):
            found = _with_first(logits, first)
            if best is None or found[0] > best.margin:
                margin, second, corners = found
                one, other = (_short(logits[row].tolist()) for row in (first, second))
                best = Example(layer, head, one, other, corners, margin)
    assert best is not None  # every tensor has a head and a query
    return best


def _with_first(logits: Tensor, first: int) -> tuple[float, int, list[int]]:
    """Return the margin, the second query and the four keys that go best with a first query."""
    depths = []
    for one, other in _CORNERS:
        depths.append(torch.minimum(one * logits[first], other * logits))  # [queries, keys]
    stacked = torch.stack(depths)
    deepest, corners = stacked.max(dim=2)  # [corners, queries]
    margin, second = deepest.min(dim=0).values.max(dim=0)
    return float(margin), int(second), corners[:, int(second)].tolist()


def _short(values: list[float]) -> list[float]:
    return [round(value, 3) for value in values]
