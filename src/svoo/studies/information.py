"""How much two partitions of the same tokens have in common."""

from __future__ import annotations

import torch
from torch import Tensor


def mutual_information(first: Tensor, second: Tensor) -> Tensor:
    """Return the normalised mutual information of labels `[..., N]`, in [0, 1]: 1 for the same
    partition. Normalised by the mean of both entropies; two partitions of one block each are the
    same."""
    ones = torch.ones(first.shape[-1], dtype=torch.float64, device=first.device)
    flat = zip(
        first.long().reshape(-1, first.shape[-1]),
        second.long().reshape(-1, first.shape[-1]),
        strict=True,
    )
    found = []
    for one, other in flat:
        columns = int(other.max()) + 1
        joint = torch.zeros((int(one.max()) + 1) * columns, dtype=torch.float64)
        joint = joint.to(first.device).scatter_add_(0, one * columns + other, ones)
        shares = joint.view(-1, columns) / first.shape[-1]
        entropies = [_entropy(shares.sum(dim=1)), _entropy(shares.sum(dim=0))]
        total = (entropies[0] + entropies[1]) / 2
        shared = entropies[0] + entropies[1] - _entropy(shares.flatten())
        found.append(torch.where(total > 0, shared / total.clamp(min=1e-12), 1.0))
    return torch.stack(found).clamp(0, 1).view(first.shape[:-1])


def _entropy(shares: Tensor) -> Tensor:
    entropy: Tensor = -torch.special.xlogy(shares, shares).sum()
    return entropy
