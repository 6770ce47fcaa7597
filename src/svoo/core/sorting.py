"""Labels as the order of their tokens: what kernels read, sorted once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class SortedLabels(NamedTuple):
    """The labels of one side: the `order` `[B, H, N]` that brings tokens of a cluster together and
    the `sizes` `[B, H, C]` of the clusters that follow one another in it."""

    order: Tensor
    sizes: Tensor

    def labels(self) -> Tensor:
        """Return the label of every token in the original order, int64 `[B, H, N]`."""
        return blocks_of_tokens(self.sizes, self.order, self.order.shape[2])

    def narrowed(self) -> SortedLabels:
        """Return the same in as few bytes as numbers up to N take: to be kept."""
        tokens = self.order.shape[2]
        narrow = torch.int16 if tokens <= torch.iinfo(torch.int16).max else torch.int32
        return SortedLabels(self.order.to(narrow), self.sizes.to(narrow))

    def of_samples(self, samples: Sequence[int]) -> SortedLabels:
        """Return these samples of the batch, some perhaps twice, in int64: to be used."""
        if list(samples) == list(range(len(self.order))):
            return SortedLabels(self.order.long(), self.sizes.long())
        return SortedLabels(*(part[list(samples)].long() for part in self))

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.order.nbytes + self.sizes.nbytes


def sort_labels(labels: Tensor, blocks: int) -> SortedLabels:
    """Sort labels `[B, H, N]` from 0 to `blocks` - 1; equal ones stay in their order."""
    narrow = torch.int16 if blocks <= torch.iinfo(torch.int16).max else torch.int32
    if labels.device.type == "cpu" and narrow == torch.int16:
        # numpy sorts 16-bit integers digit by digit, which torch does not.
        digits = labels.to(narrow).resolve_neg().numpy()
        order = torch.from_numpy(digits.argsort(axis=-1, kind="stable"))
        sizes = torch.zeros(*labels.shape[:2], blocks, dtype=torch.int64)
        ones = torch.ones_like(labels, dtype=torch.int64)
        return SortedLabels(order, sizes.scatter_add_(2, labels.long(), ones))
    ordered, order = labels.to(narrow).sort(dim=-1, stable=True)  # narrow keys sort faster
    bounds = torch.arange(blocks + 1, dtype=narrow, device=labels.device)
    bounds = bounds.expand(*labels.shape[:2], blocks + 1).contiguous()
    return SortedLabels(order, torch.searchsorted(ordered, bounds).diff(dim=-1))


def sort_sides(
    labels: tuple[Tensor, Tensor], counts: tuple[int, int]
) -> tuple[SortedLabels, SortedLabels]:
    """Sort the labels of queries and keys, of so many clusters."""
    return sort_labels(labels[0], counts[0]), sort_labels(labels[1], counts[1])


def blocks_in_order(sizes: Tensor, tokens: int) -> Tensor:
    """Return the block of each token in block order, int64 `[B, H, N]`, for sizes `[B, H, C]`."""
    index = torch.arange(tokens, device=sizes.device).expand(*sizes.shape[:2], tokens)
    return torch.searchsorted(sizes.cumsum(dim=-1), index.contiguous(), right=True)


def blocks_of_tokens(sizes: Tensor, order: Tensor | None, tokens: int) -> Tensor:
    """Return the block of each token in the original order, int64 `[B, H, N]`; the order `[B, H,
    N]` is None where that is the block order."""
    blocks = blocks_in_order(sizes, tokens)
    return blocks if order is None else torch.empty_like(blocks).scatter_(2, order.long(), blocks)
