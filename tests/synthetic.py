"""Tokens with the structure that sparse attention lives on, drawn from a seed: for the demo, tests
and benchmarks."""

from __future__ import annotations

import torch
from torch import Tensor


def clustered_tokens(
    batch: int,
    heads: int,
    tokens: int,
    head_size: int,
    *,
    groups: int = 24,
    sharpness: float = 6.0,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw query, key, value `[B, H, N, D]` whose tokens form `groups`, each attending mostly to a
    few others.

    Keys scatter around group centres; a query leans towards the centre of its own group and of
    another one. `sharpness` is the logit of a query with its own centre. Group sizes are uneven.
    """
    shape = (batch, heads, groups, head_size)
    centres = torch.nn.functional.normalize(torch.randn(shape, generator=generator), dim=-1)
    weights = torch.rand(groups, generator=generator).square() + 0.1
    length = head_size**0.25 * sharpness**0.5  # |q| |k| / sqrt(D) = sharpness

    def draw(lean: float) -> tuple[Tensor, Tensor]:
        flat = weights.expand(batch * heads, groups)
        labels = torch.multinomial(flat, tokens, replacement=True, generator=generator)
        labels = labels.view(batch, heads, tokens, 1).expand(batch, heads, tokens, head_size)
        other = centres.roll(1, dims=2).gather(2, labels)
        noise = torch.randn(labels.shape, generator=generator) * 0.5 / head_size**0.5
        return length * (centres.gather(2, labels) + lean * other + noise), labels

    query, _ = draw(0.5)
    key, labels = draw(0.0)
    means = torch.randn(shape, generator=generator)
    value = means.gather(2, labels) + torch.randn(labels.shape, generator=generator)
    return query, key, value
