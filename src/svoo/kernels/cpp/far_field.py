"""The far field's kernels as functions of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from svoo.core.layout import dense_rows, plain
from svoo.kernels.cpp.bindings import FarField, Groups, Moments, Tiers, point_to, run_kernel


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
    bias, lengths = (torch.empty(shape, dtype=torch.float32, device=key.device) for _ in range(2))
    values = torch.empty(*shape, size, dtype=key.dtype, device=key.device)
    call = FarField(
        point_to(key),
        point_to(value),
        *(tensor.data_ptr() for tensor in (*given, bias, values, lengths)),
        *(batch * heads, heads, keys, size, *shape[2:]),
        scale,
    )
    run_kernel("see_blocks", key.dtype, call)
    return bias, values, lengths


def group_blocks(
    key_mean: Tensor, value_mean: Tensor, sizes: Tensor, groups: int, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the groups of key blocks, int64 `[B, H, Ck]`, and the mean key and value of each
    group, float32 `[B, H, G, D]` (see `svoo.core.far_groups`).

    key_mean, value_mean `[B, H, Ck, D]`, sizes `[B, H, Ck]`; `groups` is at most Ck.
    """
    batch, heads, blocks, size = key_mean.shape
    given = (plain(key_mean.float()), plain(value_mean.float()), plain(sizes))
    labels = torch.empty(batch, heads, blocks, dtype=torch.int64, device=key_mean.device)
    shape = (batch, heads, groups, size)
    made = [torch.empty(shape, dtype=torch.float32, device=key_mean.device) for _ in range(2)]
    pointers = (tensor.data_ptr() for tensor in (*given, labels, *made))
    call = Groups(*pointers, batch * heads, size, blocks, groups, steps)
    run_kernel("group_blocks", torch.float32, call)
    return labels, made[0], made[1]


def choose_tiers(
    seen: tuple[Tensor, Tensor],
    means: tuple[Tensor, Tensor, Tensor],
    variances: tuple[Tensor, Tensor, Tensor],
    sizes: Tensor,
    weight: Tensor,
    groups: tuple[Tensor, Tensor, Tensor] | None,
    *,
    scale: float,
    tolerance: float,
    token: torch.dtype,
) -> tuple[Tensor, ...]:
    """Return keep and middle, bool `[B, H, Cq, Ck]`, and with groups bias `[B, H, Cq, G]`, key and
    value `[B, H, Cq, G, D]` in the dtype `token` of the terms that blocks share.

    seen: log S, |V| `[B, H, Cq, Ck]`. means, variances: of queries, keys, values `[B, H, C, D]`.
    sizes `[B, H, Ck]`, weight `[H]`. groups: as `group_blocks` returns them, or None. See
    `svoo.core.far_plan`.
    """
    (batch, heads, queries, blocks), device = seen[0].shape, seen[0].device
    size, count = means[0].shape[3], 0 if groups is None else groups[1].shape[2]
    keep, middle = (torch.empty(seen[0].shape, dtype=torch.bool, device=device) for _ in range(2))
    shape = (batch, heads, queries, count)
    terms = (
        torch.empty(shape, dtype=torch.float32, device=device),
        *(torch.empty(*shape, size, dtype=token, device=device) for _ in range(2)),
    )
    moments = (part for pair in zip(means, variances, strict=True) for part in pair)
    numbers = [plain(part.float()) for part in (*seen, *moments)]
    labels, *centres = (None, None, None) if groups is None else map(plain, groups)
    tensors = (
        *(*numbers, plain(sizes), labels, *centres, plain(weight.float())),
        *(keep, middle, *terms),
    )
    call = Tiers(
        *(None if tensor is None else tensor.data_ptr() for tensor in tensors),
        *(batch * heads, heads, size, queries, blocks, count),
        *(scale, tolerance),
    )
    run_kernel("choose_tiers", token, call)
    return (keep, middle, *terms) if groups is not None else (keep, middle)
