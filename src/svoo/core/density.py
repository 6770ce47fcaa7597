"""How many keys attention really needs: the paper's required density, exact or sampled, and the
variance of logits that its theorem rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from svoo.core.random import sample_rows
from svoo.core.selection import WHOLE, whole_shares
from svoo.core.validate import (
    accumulation_dtype,
    check_mass,
    check_tokens,
    default_scale,
    inference_only,
)

_SORTED_ELEMENTS = 1 << 22  # logits held at a time
_BINNED_ELEMENTS = 1 << 19  # fewer: they stay in a core's cache from one pass to the next
_BINNED_ELEMENTS_ELSEWHERE = 1 << 24  # on a GPU a launch costs more: 200 MB
BIN_WIDTH = 1 / 32  # of a logit
_BINS = 1024  # 32 nats below a row's largest weight, where float32 has nothing left to add


@dataclass(frozen=True)
class DensityEstimate:
    """Required density and its standard error, each `[B, H]`, or `[B, H, masses]` if several
    masses were asked."""

    value: Tensor
    error: Tensor


@inference_only
def required_density(
    query: Tensor,
    key: Tensor,
    *,
    mass: float | Sequence[float] = 0.95,
    rows: int | None = None,
    scale: float | None = None,
    generator: torch.Generator | None = None,
    exact: bool = True,
) -> DensityEstimate:
    """Measure the smallest fraction of keys whose softmax probabilities reach `mass`, averaged
    over query rows.

    query `[B, H, N, D]`, key `[B, H, M, D]`. `rows` samples that many query rows without
    replacement (the same ones for every head) and gives the standard error of the mean; None takes
    all rows, and the error is 0. Rows go in chunks: no `[N, M]` matrix is held. All masses cost
    one pass. Mass 1 takes every key.

    `exact=False` counts logits in bins of width `BIN_WIDTH` instead of sorting them
    (`benchmarks/profiling.py` says how much faster): a row's count is then that of a mass whose
    odds are within a factor exp(BIN_WIDTH) of those asked for (0.95 may become 0.9485 to 0.9515).
    """
    masses = [mass] if isinstance(mass, float | int) else list(mass)
    check_mass(*masses)
    check_tokens(query, key)
    tokens, keys = query.shape[2], key.shape[2]
    picked = sample_rows(tokens, rows, generator, query.device)
    if picked is not None:
        query = query.index_select(2, picked)
    dtype = accumulation_dtype(query)
    scaled = query.to(dtype) * default_scale(query, scale)
    wanted = torch.tensor(masses, dtype=torch.float64, device="cpu")
    count = _count_by_sorting if exact else _count_in_bins
    # [B * H, rows, masses]; a head at a time in float32, not all. `flatten` might copy all keys.
    heads = [(sample, head) for sample in range(len(key)) for head in range(key.shape[1])]
    counts = torch.stack([count(scaled[at], key[at].to(dtype), wanted) for at in heads])
    fraction = torch.where((wanted < 1).to(counts.device), counts, keys)
    fraction = fraction.unflatten(0, query.shape[:2]).to(dtype).to(query.device) / keys
    value = fraction.mean(dim=2)
    if rows is None or picked is None:
        error = torch.zeros_like(value)
    elif rows == 1:
        error = torch.full_like(value, math.inf)  # one row says nothing about the spread
    else:
        error = fraction.std(dim=2) / math.sqrt(rows) * math.sqrt(1 - rows / tokens)
    if isinstance(mass, float | int):
        return DensityEstimate(value.squeeze(-1), error.squeeze(-1))
    return DensityEstimate(value, error)


def _count_by_sorting(query: Tensor, key: Tensor, masses: Tensor) -> Tensor:
    """Return how many keys `[M, D]` each row of a scaled query `[rows, D]` needs, `[rows,
    masses]`."""
    # Whole numbers: their sums are the same on every device, and not every device has float64.
    wanted = (masses * WHOLE).ceil().long().to(key.device)
    counts = []
    for part in query.split(max(1, _SORTED_ELEMENTS // len(key))):
        weights = (part @ key.T).softmax(dim=-1)
        reached = whole_shares(weights.sort(dim=-1, descending=True).values).cumsum(dim=-1)
        below = torch.searchsorted(reached, wanted.repeat(len(part), 1))
        counts.append((below + 1).clamp(max=len(key)))
    return torch.cat(counts)


def _count_in_bins(query: Tensor, key: Tensor, masses: Tensor) -> Tensor:
    """Do the same to the resolution of a histogram, every weight taken as its bin's middle. The
    histograms are read on the CPU: not every device has float64."""
    # -logit / BIN_WIDTH: less its row's smallest, how many bins it lies below the largest logit.
    depth = query / -BIN_WIDTH
    held = _BINNED_ELEMENTS if query.device.type == "cpu" else _BINNED_ELEMENTS_ELSEWHERE
    chunk = max(1, held // max(len(key), _BINS))
    below = key.new_empty(min(chunk, len(query)), len(key))
    bins = torch.empty_like(below, dtype=torch.int64)
    one = key.new_ones(1)
    counts = []
    for part in depth.split(chunk):
        here = torch.mm(part, key.T, out=below[: len(part)])
        here.sub_(here.amin(dim=-1, keepdim=True)).clamp_(max=_BINS - 1)
        index = bins[: len(part)].copy_(here)
        histogram = key.new_zeros(len(part), _BINS)
        histogram.scatter_add_(1, index, one.expand(index.shape))
        counts.append(_read_histogram(histogram.cpu().double(), masses))
    return torch.cat(counts)


def _read_histogram(keys: Tensor, masses: Tensor) -> Tensor:
    """Return how many keys are needed by rows whose keys lie in bins as `[rows, _BINS]` says."""
    middle = torch.arange(_BINS, dtype=torch.float64, device=keys.device) + 0.5
    weight = torch.exp(-BIN_WIDTH * middle)
    reached = (keys * weight).cumsum(dim=-1)
    target = reached[:, -1:] * masses
    last = torch.searchsorted(reached, target).clamp(max=_BINS - 1)  # the bin where it is reached
    inside, weight = keys.gather(1, last), weight[last]
    before = keys.cumsum(dim=-1).gather(1, last) - inside
    missing = target - (reached.gather(1, last) - inside * weight)
    return before + (missing / weight).ceil().clamp(min=1).minimum(inside.clamp(min=1))


@inference_only
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


def _key_covariance(key: Tensor) -> Tensor:
    """Return the covariance of the keys (divided by M), `[B, H, D, D]`."""
    wide = key.to(accumulation_dtype(key))
    centred = wide - wide.mean(dim=2, keepdim=True)
    return centred.transpose(2, 3) @ centred / key.shape[2]
