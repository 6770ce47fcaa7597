"""The kernel of attention probabilities summed over blocks as a function of tensors."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from svoo.core.layout import dense_rows, plain
from svoo.kernels.cpp.bindings import BlockSums, padded_size, point_to, run_kernel


def sum_blocks(query: Tensor, key: Tensor, block: int, scale: float) -> Tensor:
    """Return `svoo.core.block_sums.probability_sums` of query `[B, H, N, D]` and key
    `[B, H, M, D]`, float32 `[B, H, Cq, Ck]`."""
    query = dense_rows(query)
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    rows = plain(pad(key.float(), (0, padded_size(size) - size)))
    sums = rows.new_zeros(batch, heads, -(-queries // block), -(-keys // block))
    call = BlockSums(
        point_to(query),
        *(tensor.data_ptr() for tensor in (rows, sums)),
        *(batch * heads, heads, queries, keys, size, block),
        scale,
    )
    run_kernel("sum_blocks", query.dtype, call)
    return sums
