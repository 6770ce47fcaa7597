"""Query tokens that keep the same key blocks become one query block."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_BITS = 21  # exact as a sum in float32; three of them fit into a whole number


class EqualRows(NamedTuple):
    """Tokens brought together: order `[B, H, N]`, sizes `[B, H, G]` (zeros behind the last group
    of a head) and keep `[B, H, G, C]`."""

    order: Tensor
    sizes: Tensor
    keep: Tensor


def group_equal_rows(keep: Tensor) -> EqualRows:
    """Group tokens whose rows of keep `[B, H, N, C]` are equal; tokens of a group stay in their
    order. Waits for the device once: the number of groups is a size of tensors."""
    batch, heads, tokens, blocks = keep.shape
    codes = _encode(keep)
    order = torch.arange(tokens, device=keep.device).expand(batch, heads, tokens)
    for code in reversed(codes):  # by the last first, so that the first decides
        order = order.gather(2, code.gather(2, order).argsort(dim=2, stable=True))
    starts_group = torch.zeros_like(order, dtype=torch.bool)
    for code in codes:
        here = code.gather(2, order)
        starts_group[..., 1:] |= here[..., 1:] != here[..., :-1]
    group = starts_group.cumsum(dim=2)
    groups = int(group[..., -1].max()) + 1
    sizes = torch.zeros(batch, heads, groups, dtype=torch.int64, device=keep.device)
    sizes.scatter_add_(2, group, torch.ones_like(group))
    first = order.gather(2, (sizes.cumsum(dim=2) - sizes).clamp(max=tokens - 1))
    rows = keep.gather(2, first.unsqueeze(-1).expand(batch, heads, groups, blocks))
    return EqualRows(order, sizes, rows)


def _encode(keep: Tensor) -> list[Tensor]:
    """Return whole numbers `[B, H, N]` that are equal, all of them, just where rows of keep
    `[B, H, N, C]` are."""
    powers = 2.0 ** torch.arange(_BITS, device=keep.device)
    words = [(part.float() @ powers[: part.shape[3]]).long() for part in keep.split(_BITS, dim=3)]
    codes = []
    for first in range(0, len(words), 3):
        code = words[first]
        for number, word in enumerate(words[first + 1 : first + 3], start=1):
            code = code | word << number * _BITS
        codes.append(code)
    return codes
