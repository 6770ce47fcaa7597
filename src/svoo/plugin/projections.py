"""How much the output of each head counts: read from the weights of output projections, or asked
of the projections themselves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

_PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_PROBES = 32  # random directions per head, where a weight cannot be read


@dataclass(frozen=True)
class Projection:
    """The output projection of one layer: a module whose first `width` inputs are the heads."""

    module: nn.Module
    heads: int
    width: int
    inputs: int


def weigh_projection(projection: Projection, like: Tensor) -> Tensor:
    """Return the norm of each head's slice over the root of the head size, `[heads]` on the CPU.

    A plain weight is read. Any other (quantised, or not loaded) is asked: its module projects
    random signs, of the dtype and on the device of `like`, and the mean length of the answers is
    the norm.
    """
    weight = _plain_weight(projection)
    if weight is None:
        return _probe(projection, like)
    with torch.no_grad():
        slices = weight[:, : projection.width].float().unflatten(1, (projection.heads, -1))
        norms: Tensor = slices.square().sum(dim=(0, 2)).sqrt() / slices.shape[2] ** 0.5
    return norms.cpu()


def _plain_weight(projection: Projection) -> Tensor | None:
    """Return the weight `[out, in]` of a projection, if it is a plain tensor of numbers."""
    weight = getattr(projection.module, "weight", None)
    if type(weight) not in (Tensor, nn.Parameter) or not isinstance(weight, Tensor):
        return None  # a class of its own: quantised
    plain = weight.dtype in _PLAIN and weight.ndim == 2 and not weight.is_meta
    return weight if plain and weight.shape[1] == projection.inputs else None


def _probe(projection: Projection, like: Tensor) -> Tensor:
    """Return the norms of the slices of a projection that cannot be read, `[heads]`."""
    heads, size = projection.heads, projection.width // projection.heads
    chance = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (_PROBES, size), generator=chance, device="cpu") * 2.0 - 1
    inputs = torch.zeros(heads * _PROBES + 1, projection.inputs, device="cpu")
    for head in range(heads):
        rows = slice(head * _PROBES, (head + 1) * _PROBES)
        inputs[rows, head * size : (head + 1) * size] = signs
    with torch.no_grad():
        answers = projection.module(inputs.to(like).unsqueeze(0))[0].float()
    lengths = (answers[:-1] - answers[-1:]).square().sum(dim=1)  # the last is the bias alone
    norms: Tensor = lengths.view(heads, _PROBES).mean(dim=1).sqrt() / size**0.5
    return norms.cpu()
