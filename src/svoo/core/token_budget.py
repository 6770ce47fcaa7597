"""Choosing key blocks until a number of tokens is spent."""

from __future__ import annotations

import torch
from torch import Tensor


def spend_tokens(scores: Tensor, sizes: Tensor, limit: Tensor | float) -> Tensor:
    """Take key blocks in falling order of their scores while the tokens taken before are fewer
    than the limit: bool `[B, H, Cq, Ck]`.

    scores `[B, H, Cq, Ck]`, sizes `[B, H, Ck]`, limit a number or `[B, H, Cq]`: the last block
    taken may overshoot it. The first of equal scores goes first; an empty block is never taken.
    """
    filled = (sizes > 0).unsqueeze(2)
    order = scores.masked_fill(~filled, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    spent = sizes.unsqueeze(2).expand(order.shape).gather(-1, order)
    before = spent.cumsum(dim=-1) - spent
    within = before < (limit.unsqueeze(-1) if isinstance(limit, Tensor) else limit)
    return torch.zeros_like(within).scatter_(-1, order, within) & filled
