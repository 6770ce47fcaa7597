"""Where a layer's heads are: all here, or spread over devices that share one video."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def all_are_here(values: Tensor) -> Tensor:
    """Return the values themselves: there is no other device."""
    return values


@dataclass(frozen=True, eq=False)
class Heads:
    """Which heads of a layer are shown here: those from `first` on, of `total` (None: all are).

    What looks across heads asks for all of them by `gather`: it turns one value per head here
    `[h, ...]` into one per head everywhere, in the order of heads. Every device must call it
    equally often.
    """

    first: int = 0
    total: int | None = None
    gather: Callable[[Tensor], Tensor] = all_are_here

    def own(self, values: Tensor, count: int, dim: int = 0) -> Tensor:
        """Return the part of the `count` heads here of values of all heads, along axis `dim`."""
        return values if self.total is None else values.narrow(dim, self.first, count)

    def largest(self, values: Tensor) -> Tensor:
        """Return the largest value of any head, a number; values `[h, ...]` are those here."""
        return self.gather(values.flatten(1).amax(dim=1)).amax()

    def draw_indices(self, tokens: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Return `count` random indices of tokens `[B, h, N, D]` per head, perhaps some twice:
        int64 `[B, h, count]`, the same for a head whichever process has it."""
        batch, here, length = tokens.shape[:3]
        shape = batch, self.total or here, count
        indices = torch.randint(length, shape, generator=generator, device=generator.device)
        return self.own(indices, here, dim=1).to(tokens.device, non_blocking=True)


ALL_HEADS = Heads()
