"""The far field's kernels as functions of tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from svoo.core.layout import dense_rows, plain
from svoo.kernels.cpp.bindings import FarField, Moments, Tiers, point_to, run_kernel


def moments(tokens: Tensor, order: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and variances per axis, float32 `[B, H, C, D]`, of tokens `[B, H, N, D]` that
    stand together in `order` `[B, H, N]`, `sizes` `[B, H, C]` of them."""
    tokens, order, sizes = dense_rows(tokens), plain(order), plain(sizes)
    batch, heads, count, size = tokens.shape
    shape = (*sizes.shape, size)
    means, variances = (
        torch.empty(shape, dtype=torch.float32, device=tokens.device) for _ in range(2)
    )
    pointers = (tensor.data_ptr() for tensor in (order, sizes, means, variances))
    sizes_of = (batch * heads, heads, count, size, sizes.shape[2])
    run_kernel("find_moments", tokens.dtype, Moments(point_to(tokens), *pointers, *sizes_of))
    return means, variances


def see_blocks(
    query_mean: Tensor,
    key_mean: Tensor,
    key: Tensor,
    value: Tensor,
    key_order: Tensor,
    key_sizes: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log S, V and |V| (see `svoo.core.far_field`): `[B, H, Cq, Ck]` in float32,
    `[B, H, Cq, Ck, D]` in the tokens' dtype, `[B, H, Cq, Ck]`."""
    key, value = dense_rows(key), dense_rows(value)
    given = [
        plain(tensor) for tensor in (query_mean.float(), key_mean.float(), key_order, key_sizes)
    ]
    batch, heads, keys, size = key.shape
    shape = (batch, heads, query_mean.shape[2], key_mean.shape[2])
    shifts, totals, lengths = (
        torch.empty(shape, dtype=torch.float32, device=key.device) for _ in range(3)
    )
    values = torch.empty(*shape, size, dtype=key.dtype, device=key.device)
    call = FarField(
        point_to(key),
        point_to(value),
        *(tensor.data_ptr() for tensor in (*given, shifts, totals, values, lengths)),
        *(batch * heads, heads, keys, size, *shape[2:]),
        scale,
    )
    run_kernel("see_blocks", key.dtype, call)
    return totals.log2_().add_(shifts).mul_(math.log(2)), values, lengths


def choose_tiers(
    seen: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
    means: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    shared: tuple[Tensor, ...],
    groups: int,
    *,
    scale: float,
    tolerance: float,
    token: torch.dtype,
) -> tuple[Tensor, ...]:
    """Return keep and middle, bool `[B, H, Cq, Ck]`, and with groups bias `[B, H, Cq, G]`, key and
    value `[B, H, Cq, G, D]` in the dtype `token` of the terms that blocks share.

    seen: logits, log S, variances of logits, |V| `[B, H, Cq, Ck]`; deviations of values, sizes
    `[B, H, Ck]`. means: of queries, keys, values `[B, H, C, D]`. weight `[H]`. shared, with
    groups: variances of logits from the group's `[B, H, Cq, Ck]`; labels of groups, |v_j|, |v_j -
    v_g| `[B, H, Ck]`. See `svoo.core.far_tiers`.
    """
    logits, bias, spreads, lengths, deviations = (plain(part.float()) for part in seen[:5])
    sizes, labels = plain(seen[5]), None
    group_spreads = value_lengths = value_distances = None
    if shared:
        group_spreads, value_lengths, value_distances = (
            plain(part.float()) for part in (shared[0], *shared[2:])
        )
        labels = plain(shared[1])
    own_means = [plain(part.float()) for part in means]
    weight = plain(weight.float())
    batch, heads, queries, blocks = logits.shape
    size, device = own_means[0].shape[3], logits.device
    keep, middle = (torch.empty_like(logits, dtype=torch.bool) for _ in range(2))
    count = groups if shared else 0
    terms = (
        torch.empty(batch, heads, queries, count, dtype=torch.float32, device=device),
        *(
            torch.empty(batch, heads, queries, count, size, dtype=token, device=device)
            for _ in range(2)
        ),
    )
    tensors = (
        *(logits, bias, spreads, lengths, group_spreads, deviations),
        *(value_lengths, value_distances, sizes, labels, *own_means, weight),
        *(keep, middle, *terms),
    )
    call = Tiers(
        *(None if tensor is None else tensor.data_ptr() for tensor in tensors),
        *(batch * heads, heads, size, queries, blocks, count),
        *(scale, tolerance),
    )
    run_kernel("choose_tiers", token, call)
    return (keep, middle, *terms) if shared else (keep, middle)
