"""What a plan costs: the attention mass it keeps and how far its output is from dense
attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo.core.layout import VideoLayout
from svoo.core.plan import BlockPlan
from svoo.core.random import sample_rows
from svoo.core.validate import accumulation_dtype, check_tokens, default_scale, inference_only

_CHUNK_ELEMENTS = 1 << 22  # logits held at a time
_GROUP_ELEMENTS = 1 << 27  # of keys, values and logits held at a time on a GPU: 512 MB


@inference_only
def recall(
    query: Tensor,
    key: Tensor,
    plan: BlockPlan,
    *,
    layout: VideoLayout | None = None,
    rows: int | None = None,
    scale: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the attention mass that falls on kept pairs, the mean over query rows: `[B, H]`.

    Compensated pairs do not count as kept; padding (see `layout`) counts neither as key nor as
    query. `rows` samples query rows, the same ones for every head. Rows go in chunks.
    """
    check_tokens(query, key, finite=False)
    plan.check_fits(query, key)
    tokens, keys = query.shape[2], key.shape[2]
    picked = sample_rows(tokens, rows, generator, query.device)
    if picked is None:
        picked = torch.arange(tokens, device=query.device)
    real = _real_tokens(query, layout)
    dtype, factor = accumulation_dtype(query), default_scale(query, scale)
    query_blocks, key_blocks = plan.query_blocks(), plan.key_blocks()
    keys_transposed = key.to(dtype).transpose(2, 3)
    total = torch.zeros(query.shape[:2], dtype=dtype, device=query.device)
    for part in picked.split(max(1, _CHUNK_ELEMENTS // (query.shape[0] * query.shape[1] * keys))):
        logits = query[:, :, part].to(dtype) @ keys_transposed * factor
        if real is not None:
            logits = logits.masked_fill(~real[:, None, None], -torch.inf)
        weights = logits.softmax(dim=-1)
        blocks = query_blocks[:, :, part].unsqueeze(-1)
        kept = plan.keep.gather(2, blocks.expand(*blocks.shape[:3], plan.keep.shape[3]))
        columns = key_blocks.unsqueeze(2).expand(*weights.shape)
        found = (weights * kept.gather(3, columns)).sum(dim=3)
        total += (found if real is None else found * real[:, None, part]).sum(dim=2)
    if real is None:
        return total / len(picked)
    return total / real[:, picked].sum(dim=1, keepdim=True).clamp(min=1)


@inference_only
def sampled_error(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    *,
    rows: int,
    generator: torch.Generator,
    layout: VideoLayout | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return (|output - dense| / |dense|)^2 over some random video queries, `[B, H]`.

    query, output `[B, H, N, D]`, key, value `[B, H, M, D]`. Draws `rows` queries, perhaps some
    twice, the same ones for every head, and attends from them to all real keys: rows / N of what
    dense attention costs. Squares have a mean that does not depend on `rows`; roots have not.
    Waits for no device.
    """
    first, count = (0, query.shape[2]) if layout is None else (layout.video_start, layout.video)
    drawn = torch.randint(count, (rows,), generator=generator, device=generator.device) + first
    drawn = drawn.to(query.device, non_blocking=True)
    mask = None if layout is None else layout.real_tokens()
    mask = None if mask is None else mask[:, None, None].to(query.device)
    dtype = accumulation_dtype(query)
    dense = scaled_dot_product_attention(
        query.index_select(2, drawn),
        key,
        value,
        attn_mask=mask,
        scale=default_scale(query, scale),
    ).to(dtype)
    wrong = (output.index_select(2, drawn).to(dtype) - dense).square().sum(dim=(2, 3))
    return wrong / dense.square().sum(dim=(2, 3)).clamp(min=torch.finfo(dtype).tiny)


def output_error(output: Tensor, dense: Tensor) -> Tensor:
    """Return |output - dense| / |dense| over tokens and channels of `[B, H, N, D]`: `[B, H]`."""
    dtype = accumulation_dtype(dense)
    difference = (output.to(dtype) - dense.to(dtype)).square().sum(dim=(2, 3))
    return (difference / dense.to(dtype).square().sum(dim=(2, 3))).sqrt()


def _real_tokens(query: Tensor, layout: VideoLayout | None) -> Tensor | None:
    """Say which tokens are no padding, bool `[B, N]`; None: all are real."""
    if layout is None:
        return None
    layout.check(query.shape[0], query.shape[2])
    real = layout.real_tokens()
    return None if real is None else real.to(query.device)


def masked_errors(
    query: Tensor, key: Tensor, value: Tensor, rows: Tensor, masks: Tensor, scale: float | None
) -> Tensor:
    """Return the mean squared error of attention under each of masks `[2, R, N]` at rows `[R]`, of
    query, key, value `[B, H, N, D]`: `[2, B, H]`; infinite where a mask holds none of the mass."""
    dtype = accumulation_dtype(query)
    scaled = query.index_select(2, rows).to(dtype) * default_scale(query, scale)
    masks = masks.to(dtype)
    group = _heads_at_a_time(key, len(rows))
    errors = []
    for first in range(0, query.shape[1], group):
        heads = slice(first, first + group)
        wide = value[:, heads].to(dtype)
        logits = scaled[:, heads] @ key[:, heads].to(dtype).transpose(2, 3)
        weights = logits.sub_(logits.amax(dim=-1, keepdim=True)).exp_()
        exact = weights @ wide / weights.sum(dim=-1, keepdim=True)
        kept = torch.empty_like(weights)
        for mask in masks:
            torch.mul(weights, mask, out=kept)
            output = kept @ wide / kept.sum(dim=-1, keepdim=True)
            errors.append((output - exact).square_().mean(dim=(2, 3)).nan_to_num_(torch.inf))
    return torch.stack((torch.cat(errors[::2], dim=1), torch.cat(errors[1::2], dim=1)))


def _heads_at_a_time(key: Tensor, rows: int) -> int:
    """Return how many heads `masked_errors` takes together: on a CPU one stays in cache, a GPU
    wants as many as some memory allows."""
    one = len(key) * key.shape[2] * 2 * (key.shape[3] + rows)
    return 1 if key.device.type == "cpu" else max(1, _GROUP_ELEMENTS // one)
