"""Chunks chosen by query tokens one by one: the own chunk, and the best others by their gates."""

from __future__ import annotations

import torch
from torch import Tensor

from svoo.core.selection import keep_top, sort_falling

_EPSILON = 1e-6
_ONE = 1 << 32


def keep_topk(gate: Tensor, own: Tensor, count: int) -> Tensor:
    """Return the own chunk `[N]` of each token and the best others by gate `[B, H, N, C]`, `count`
    in all: bool `[B, H, N, C]`."""
    own_chunk = own.view(-1, 1).expand(*gate.shape[:3], 1)
    return keep_top(gate.scatter(3, own_chunk, torch.inf), count)


def keep_threshold(gate: Tensor, own: Tensor, threshold: float, *, whole_head: bool) -> Tensor:
    """Return the own chunk `[N]` of each token and the best others by gate `[B, H, N, C]` until
    they hold `threshold` of the scaled gates, of each token or of the whole head, at least one and
    all that are equal to the last: bool `[B, H, N, C]`."""
    own_chunk = own.view(-1, 1).expand(*gate.shape[:3], 1)
    scores = gate.flatten(2).unsqueeze(2) if whole_head else gate
    low, high = scores.aminmax(dim=-1, keepdim=True)
    width = high - low
    scores = (scores - low) / torch.where(width <= _EPSILON, 1, width)
    total = scores.sum(dim=-1, keepdim=True) + _EPSILON
    by_token = scores.view(gate.shape)
    own_score = by_token.gather(3, own_chunk)
    if whole_head:
        own_score = own_score.sum(dim=2, keepdim=True)
    missing = (threshold - own_score / total).clamp(min=0)
    others = by_token.scatter(3, own_chunk, -1).view(scores.shape)  # the own one is not among them
    falling = sort_falling(others)
    # Whole numbers have the same sums everywhere; a head has fewer than 2^31 of them.
    whole = (falling.clamp(min=0) * _ONE).round().long()
    reached = whole.cumsum(dim=-1).to(total.dtype) / (_ONE * total)
    last = (reached < missing).sum(dim=-1, keepdim=True).clamp(max=falling.shape[-1] - 1)
    keep = (others >= falling.gather(-1, last)).view(gate.shape)
    return keep.scatter(3, own_chunk, value=True)
