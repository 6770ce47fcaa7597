"""The far field: what a left-out block is to the query block that leaves it out.

With q_i the mean query of block i, c_j the mean key of block j, both rounded to the tokens' dtype:

    S_ij = sum_{n in j} exp((q_i.k_n - q_i.c_j) * scale)        V_ij = sum_{n in j} softmax_n(q_i.k_n * scale) v_n
    a query q of block i meets block j as one term: logit q.c_j * scale + log S_ij, value V_ij

so a query that equals q_i loses nothing, and the error of a term is what varies inside the block.
"""  # noqa: E501 (formulas side by side)

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from svoo.core.clustering import Implementation
from svoo.core.sorting import blocks_in_order
from svoo.core.validate import accumulation_dtype
from svoo.kernels.cpp import far_field as cpp

_CHUNK_ELEMENTS = 1 << 22  # numbers of the largest intermediate held at a time
VALUE_BYTES = 1 << 30  # that the values V of a group of heads may take


@dataclass(frozen=True)
class Moments:
    """Means, variances per axis `[B, H, C, D]` and sizes int64 `[B, H, C]` of clusters; an empty
    cluster has zeros."""

    mean: Tensor
    variance: Tensor
    sizes: Tensor

    @property
    def spread(self) -> Tensor:
        """The square root of the variances' sum, `[B, H, C]`: how far a token is from the mean."""
        return self.variance.sum(dim=-1).sqrt()


@dataclass(frozen=True)
class FarField:
    """What the query centroids see of each key block: bias = log S `[B, H, Cq, Ck]` in at least
    float32 (minus infinity for empty blocks), value = V `[B, H, Cq, Ck, D]` in the tokens' dtype
    (0 for empty blocks), length = |V| `[B, H, Cq, Ck]`."""

    bias: Tensor
    value: Tensor
    length: Tensor


def heads_per_group(
    batch: int,
    query_clusters: int,
    key_clusters: int,
    size: int,
    itemsize: int,
    bound: int = VALUE_BYTES,
) -> int:
    """Return how many heads may be planned together so that V `[B, heads, Cq, Ck, D]` of
    `itemsize` bytes a number takes at most `bound` bytes; one head at least.

    At 512 x 2048 clusters, head size 128, bfloat16 a head takes 268 MB, so 4 heads go together.
    """
    return max(1, bound // (batch * query_clusters * key_clusters * size * itemsize))


def find_moments(tokens: Tensor, order: Tensor, sizes: Tensor, *, by: Implementation) -> Moments:
    """Return the moments of clusters of tokens `[B, H, N, D]` whose tokens stand together in
    `order` `[B, H, N]`, `sizes` `[B, H, C]` of them."""
    if by == "cpp":
        return Moments(*cpp.moments(tokens, order, sizes), sizes)
    if by == "triton":
        from svoo.kernels.triton import centroids

        return Moments(*centroids.find_moments(tokens, order, sizes), sizes)
    dtype = accumulation_dtype(tokens)
    rows = order.unsqueeze(-1)
    sorted_tokens = tokens.gather(2, rows.expand_as(tokens)).to(dtype)
    block_of = blocks_in_order(sizes, tokens.shape[2]).unsqueeze(-1).expand_as(sorted_tokens)
    zeros = torch.zeros(*sizes.shape, tokens.shape[3], dtype=dtype, device=tokens.device)
    count = sizes.clamp(min=1).unsqueeze(-1)
    mean = zeros.scatter_add(2, block_of, sorted_tokens) / count
    rest = sorted_tokens - mean.gather(2, block_of)  # first the mean: squares alone would cancel
    return Moments(mean, zeros.scatter_add(2, block_of, rest.square()) / count, sizes)


def see_blocks(
    query_mean: Tensor,
    key_mean: Tensor,
    key: Tensor,
    value: Tensor,
    key_order: Tensor,
    key_sizes: Tensor,
    *,
    scale: float,
    by: Implementation,
) -> FarField:
    """Return S and V of rounded query means `[B, H, Cq, D]` and key means `[B, H, Ck, D]` over key
    and value `[B, H, M, D]`, which stand together by block in `key_order` `[B, H, M]`.

    All keys are read once, in block order; never holds `Cq x M` numbers beyond a chunk.
    """
    if by == "cpp":
        return FarField(
            *cpp.see_blocks(query_mean, key_mean, key, value, key_order, key_sizes, scale)
        )
    if by == "triton":
        from svoo.kernels.triton.far_field import look

        log_sum, looked = look(query_mean, key_mean, key, value, key_order, key_sizes, scale=scale)
        # In the tokens' dtype: another copy of the largest array there is would double it.
        return FarField(log_sum, looked, looked.norm(dim=-1).to(log_sum.dtype))
    dtype = accumulation_dtype(key)
    means, centres = query_mean.to(dtype), key_mean.to(dtype)
    batch, heads, queries, size = means.shape
    shape = (batch, heads, queries, key_sizes.shape[2])
    base = means @ centres.transpose(2, 3) * scale
    top = torch.full(shape, -torch.inf, dtype=dtype, device=key.device)
    total, seen = torch.zeros_like(top), torch.zeros(*shape, size, dtype=dtype, device=key.device)
    blocks = blocks_in_order(key_sizes, key.shape[2])
    chunk = max(1, _CHUNK_ELEMENTS // (batch * heads * queries * size))

    def parts() -> list[tuple[Tensor, Tensor]]:
        return list(zip(key_order.split(chunk, 2), blocks.split(chunk, 2), strict=True))

    def logits_of(order: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        rows = key.gather(2, order.unsqueeze(-1).expand(*order.shape, size)).to(dtype)
        logits = means @ rows.transpose(2, 3) * scale
        return logits, own.unsqueeze(2).expand_as(logits)

    for order, own in parts():
        logits, columns = logits_of(order, own)
        top.scatter_reduce_(3, columns, logits, "amax")
    for order, own in parts():
        logits, columns = logits_of(order, own)
        weights = (logits - top.gather(3, columns)).exp()
        total.scatter_add_(3, columns, weights)
        rows = value.gather(2, order.unsqueeze(-1).expand(*order.shape, size)).to(dtype)
        weighted = weights.unsqueeze(-1) * rows.unsqueeze(2)
        seen.scatter_add_(3, columns.unsqueeze(-1).expand_as(weighted), weighted)
    full = key_sizes.unsqueeze(2) > 0
    seen /= total.where(full, 1).unsqueeze(-1)
    bias = (top - base + total.log()).masked_fill(~full, -torch.inf)
    length: Tensor = seen.norm(dim=-1)
    return FarField(bias, seen.to(key.dtype), length)


@dataclass(frozen=True)
class Shares:
    """What the query means attend to: weights w `[B, H, Cq, Ck]`, which add up to 1, and the
    log-sum-exp `[B, H, Cq]` of the logits that they were made of."""

    weights: Tensor
    log_total: Tensor


def term_weights(query_mean: Tensor, key_mean: Tensor, bias: Tensor, *, scale: float) -> Shares:
    """Return w_ij = softmax_j(q_i.c_j * scale + log S_ij): the share of block j in what the query
    mean q_i `[B, H, Cq, D]` attends to; 0 for empty blocks."""
    products = query_mean.to(bias.dtype) @ key_mean.to(bias.dtype).transpose(2, 3)
    logits = products * scale + bias
    log_total = logits.logsumexp(dim=-1)
    return Shares((logits - log_total.unsqueeze(-1)).exp(), log_total)


def expected_error(
    weights: Tensor, query: Moments, key: Moments, value: Moments, length: Tensor, *, scale: float
) -> Tensor:
    """Return e_ij = w_ij (sqrt(s_ij) sd_j + s_ij / 2 |V_ij|), `[B, H, Cq, Ck]`: the error, to
    second order, that a query of block i makes with block j's term instead of its tokens.

    s_ij = scale^2 sum over axes of (variance of queries in i) (variance of keys in j): the
    variance of logits that the term does not follow; sd_j: the spread of values in j.
    """
    logit_variance = (query.variance * scale**2) @ key.variance.transpose(2, 3)
    spread = value.spread.unsqueeze(2)
    return weights * (logit_variance.sqrt() * spread + 0.5 * logit_variance * length)


def keep_by_error(error: Tensor, key_sizes: Tensor, tolerance: float, weight: Tensor) -> Tensor:
    """Return the blocks whose error for each token that they would cost is above the tolerance:
    weight_h e_ij / size_j > tolerance, bool `[B, H, Cq, Ck]`.

    error `[B, H, Cq, Ck]`, key_sizes `[B, H, Ck]`, weight `[H]`. Of each row the block with the
    largest is kept in any case, the first of equals; an empty block never.
    """
    sizes = key_sizes.unsqueeze(2)
    score = error * weight.to(error).view(-1, 1, 1) / sizes.clamp(min=1)
    score = score.masked_fill(sizes == 0, -1.0)
    return (score > tolerance).scatter(3, score.argmax(dim=-1, keepdim=True), value=True)
