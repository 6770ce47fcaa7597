"""The kernel of the features of tokens as a function of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from svoo.core.layout import dense_rows, plain
from svoo.kernels.cpp.bindings import Features, point_to, run_kernel


def find_features(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start: Tensor,
    *,
    key_features: int,
    every: tuple[int, int],
    rounds: int,
    value_share: float,
) -> tuple[Tensor, Tensor]:
    """Return float32 features `[B, H, N, 16]`, `[B, H, M, 16]` of query `[B, H, N, D]` and key,
    value `[B, H, M, D]`, as `svoo.core.features` defines them; start `[D, 16]`.

    `every` which query, and which key, is looked at to find axes.
    """
    query, key, value = (dense_rows(tokens) for tokens in (query, key, value))
    begin = plain(start.float().T)
    batch, heads, queries, size = query.shape
    keys, count = key.shape[2], begin.shape[0]
    made = [
        torch.empty(batch, heads, tokens, count, dtype=torch.float32, device=query.device)
        for tokens in (queries, keys)
    ]
    call = Features(
        *(point_to(tokens) for tokens in (query, key, value)),
        *(tensor.data_ptr() for tensor in (begin, *made)),
        *(batch * heads, heads, queries, keys, size),
        *(key_features, *every, rounds, value_share),
    )
    run_kernel("find_features", query.dtype, call)
    return made[0], made[1]
