"""Chance as an argument: generators of their own, never the global one."""

from __future__ import annotations

import torch
from torch import Tensor

from svoo.errors import ShapeError


def seeded(seed: int = 0) -> torch.Generator:
    """Return a generator of its own, so that the global one is never touched."""
    return torch.Generator().manual_seed(seed)


def sample_rows(
    tokens: int, rows: int | None, generator: torch.Generator | None, device: torch.device
) -> Tensor | None:
    """Draw `rows` of so many query tokens without replacement; None stands for all of them."""
    if rows is not None and (not isinstance(rows, int) or not 1 <= rows <= tokens):
        raise ShapeError(f"rows must be between 1 and the {tokens} query tokens, got {rows}")
    if rows is None or rows == tokens:
        return None
    chance = generator or seeded()
    return torch.randperm(tokens, generator=chance, device=chance.device)[:rows].to(device)


def mix_seeds(*numbers: int) -> int:
    """Return one seed for a tuple of whole numbers; different tuples give different streams."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number + 1) % (1 << 63)
    return seed
