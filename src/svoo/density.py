"""How many keys attention really needs: the paper's required density, exact or sampled, and two
closed forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from svoo.checks import accumulation_dtype, check_mass, check_tokens, default_scale, seeded
from svoo.errors import ShapeError

_CHUNK_ELEMENTS = 1 << 22  # logits held at a time


@dataclass(frozen=True)
class DensityEstimate:
    """Required density and its standard error, each `[B, H]`, or `[B, H, masses]` if several
    masses were asked."""

    value: Tensor
    error: Tensor


def required_density(
    query: Tensor,
    key: Tensor,
    *,
    mass: float | Sequence[float] = 0.95,
    rows: int | None = None,
    scale: float | None = None,
    generator: torch.Generator | None = None,
) -> DensityEstimate:
    """Measure the smallest fraction of keys whose softmax probabilities reach `mass`, averaged
    over query rows.

    query `[B, H, N, D]`, key `[B, H, M, D]`. `rows` samples that many query rows without
    replacement (the same ones for every head) and gives the standard error of the mean; None takes
    all rows, and the error is 0. Rows go in chunks: no `[N, M]` matrix is held. All masses cost
    one pass. Mass 1 takes every key.
    """
    masses = [mass] if isinstance(mass, float | int) else list(mass)
    check_mass(*masses)
    check_tokens(query, key)
    tokens, keys = query.shape[2], key.shape[2]
    if rows is not None and not 1 <= rows <= tokens:
        raise ShapeError(f"rows must be between 1 and the {tokens} query tokens, got {rows}")
    if rows is not None and rows < tokens:
        picked = torch.randperm(tokens, generator=generator or seeded())[:rows]
        query = query.index_select(2, picked.to(query.device))
    dtype = accumulation_dtype(query)
    factor = default_scale(query, scale)
    keys_transposed = key.to(dtype).transpose(2, 3)
    chunk = max(1, _CHUNK_ELEMENTS // (query.shape[0] * query.shape[1] * keys))
    counts = []
    for part in query.split(chunk, dim=2):
        weights = (part.to(dtype) @ keys_transposed * factor).softmax(dim=-1)
        reached = weights.sort(dim=-1, descending=True).values.cumsum(dim=-1)
        wanted = torch.tensor(masses, dtype=dtype, device=query.device)
        below = (reached.unsqueeze(-2) < wanted.unsqueeze(-1)).sum(dim=-1)  # [B, H, rows, masses]
        counts.append(torch.where(wanted < 1, (below + 1).clamp(max=keys), keys))
    fraction = torch.cat(counts, dim=2).to(dtype) / keys
    value = fraction.mean(dim=2)
    if rows is None or rows >= tokens:
        error = torch.zeros_like(value)
    elif rows == 1:
        error = torch.full_like(value, math.inf)  # one row says nothing about the spread
    else:
        error = fraction.std(dim=2) / math.sqrt(rows) * math.sqrt(1 - rows / tokens)
    if isinstance(mass, float | int):
        return DensityEstimate(value.squeeze(-1), error.squeeze(-1))
    return DensityEstimate(value, error)


def logit_variance(query: Tensor, key: Tensor, *, scale: float | None = None) -> Tensor:
    """Return the mean over query rows of the variance of their logits over keys, `[B, H]`.

    The paper's V(X), exactly, in O((N + M) D^2): the trace of Cov(K) with the mean of q q^T, times
    scale^2. It assumes nothing; that a larger variance means fewer keys is what the paper's
    theorem rests on.
    """
    check_tokens(query, key)
    wide = query.to(accumulation_dtype(query))
    second_moment = wide.transpose(2, 3) @ wide / query.shape[2]
    factor = default_scale(query, scale) ** 2
    return factor * (_key_covariance(key) * second_moment).sum(dim=(2, 3))


def gaussian_density(
    query: Tensor,
    key: Tensor,
    mass: float | Sequence[float] = 0.95,
    *,
    scale: float | None = None,
) -> Tensor:
    """Predict the required density from second moments alone, in O((N + M) D^2): `[B, H]` (+
    masses).

    Row i has logit variance v_i over the keys; were its logits Gaussian and its keys many, it
    would need the fraction Phi(Phi^-1(mass) - sqrt(v_i)). Returns the mean over rows. Trained
    heads have heavier tails than a Gaussian, so it ranks heads better than it measures them.
    """
    masses = [mass] if isinstance(mass, float | int) else list(mass)
    check_mass(*masses)
    check_tokens(query, key)
    wide = query.to(accumulation_dtype(query))
    variance = ((wide @ _key_covariance(key)) * wide).sum(dim=-1).clamp(min=0)  # [B, H, N]
    spread = variance.sqrt() * default_scale(query, scale)
    wanted = torch.tensor(masses, dtype=spread.dtype, device=spread.device)
    quantile = torch.special.ndtri(wanted)
    density: Tensor = torch.special.ndtr(quantile - spread.unsqueeze(-1)).mean(dim=2)
    return density.squeeze(-1) if isinstance(mass, float | int) else density


def _key_covariance(key: Tensor) -> Tensor:
    """Return the covariance of the keys (divided by M), `[B, H, D, D]`."""
    wide = key.to(accumulation_dtype(key))
    centred = wide - wide.mean(dim=2, keepdim=True)
    return centred.transpose(2, 3) @ centred / key.shape[2]
