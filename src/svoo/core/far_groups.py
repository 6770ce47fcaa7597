"""The third tier of the far field: key blocks that matter little share a term."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from svoo.core.clustering import Implementation
from svoo.core.far_field import Moments, Shares
from svoo.core.terms import GroupTerms
from svoo.kernels.cpp import far_field as cpp

LLOYD_STEPS = 4


@dataclass(frozen=True)
class KeyGroups:
    """Groups of key blocks: labels int64 `[B, H, Ck]`; mean key and value of each group's tokens
    `[B, H, G, D]`."""

    labels: Tensor
    key: Tensor
    value: Tensor


def group_keys(
    key: Moments, value: Moments, groups: int, *, by: Implementation = "torch"
) -> KeyGroups:
    """Group key blocks by their mean keys: LLOYD_STEPS steps of k-means, each block weighing as
    many tokens as it has; it begins with blocks 0, Ck / G, 2 Ck / G, ...

    An empty group keeps its centre; an empty block is in some group and weighs nothing.
    """
    blocks = key.mean.shape[2]
    groups = min(groups, blocks)
    if by == "cpp":
        return KeyGroups(*cpp.group_blocks(key.mean, value.mean, key.sizes, groups, LLOYD_STEPS))
    first = torch.arange(groups, device=key.mean.device) * blocks // groups
    centres, values = key.mean[:, :, first], value.mean[:, :, first]
    labels = torch.zeros_like(key.sizes)
    numbers = torch.arange(groups, device=key.mean.device).unsqueeze(-1)
    members = count = torch.zeros(())
    for _ in range(LLOYD_STEPS):
        # argmin |c - g|^2 = argmax <c, g> - |g|^2 / 2
        scores = key.mean @ centres.transpose(2, 3)
        scores = scores - 0.5 * centres.square().sum(dim=-1).unsqueeze(2)
        labels = scores.max(dim=-1).indices  # on a CPU faster than `argmax`
        members = (labels.unsqueeze(2) == numbers) * key.sizes.unsqueeze(2).to(key.mean)
        count = members.sum(dim=-1, keepdim=True)
        centres = torch.where(count > 0, members @ key.mean / count.clamp(min=1), centres)
    values = torch.where(count > 0, members @ value.mean / count.clamp(min=1), values)
    return KeyGroups(labels, centres, values)


def grouping_error(
    weights: Tensor,
    query: Moments,
    key: Moments,
    value: Moments,
    groups: KeyGroups,
    *,
    scale: float,
) -> Tensor:
    """Return w_ij (sqrt(s2) |v_j - v_g| + s2 / 2 |v_j|), `[B, H, Cq, Ck]`: the error, to second
    order, of giving block j's weight to the term of its group g.

    s2 = scale^2 sum over axes of (variance of queries in i) (c_j - c_g)^2; v_j, c_j the block's
    mean value and key, v_g, c_g the group's.
    """
    group_of = groups.labels.unsqueeze(-1).expand(*groups.labels.shape, key.mean.shape[3])
    apart = (key.mean - groups.key.gather(2, group_of)).square()
    logit_variance = (query.variance * scale**2) @ apart.transpose(2, 3)
    value_apart: Tensor = (value.mean - groups.value.gather(2, group_of)).norm(dim=-1)
    length: Tensor = value.mean.norm(dim=-1).unsqueeze(2)
    spread = logit_variance.sqrt() * value_apart.unsqueeze(2)
    return weights * (spread + 0.5 * logit_variance * length)


def group_terms(
    far: Tensor,
    shares: Shares,
    query_mean: Tensor,
    key_mean: Tensor,
    value: Moments,
    groups: KeyGroups,
    *,
    scale: float,
) -> GroupTerms:
    """Return one term for the blocks of each group that a query block has in its third tier.

    far bool `[B, H, Cq, Ck]` says which. key = sum w c / sum w, rounded; value = sum w v / sum w;
    bias so that q_i gives the term what it gave its blocks: log_total + log sum w - q_i.key *
    scale. Minus infinity where a group has no such block.
    """
    own = shares.weights * far
    count = groups.key.shape[2]
    # One product for all groups: its other side holds a block's numbers in its group's columns.
    numbers = torch.arange(count, device=own.device)
    members = groups.labels.unsqueeze(-1) == numbers  # [B, H, Ck, G]
    share = own @ members.to(own)
    sums = [
        (own @ (members.unsqueeze(-1) * side.to(own).unsqueeze(3)).flatten(3)).unflatten(
            3, (count, -1)
        )
        for side in (key_mean, value.mean)
    ]
    key, values = (
        (part / share.where(share > 0, 1).unsqueeze(-1)).to(query_mean.dtype) for part in sums
    )
    product = (key.to(own) * query_mean.to(own).unsqueeze(3)).sum(dim=-1) * scale
    bias = shares.log_total.unsqueeze(-1) + share.log() - product
    return GroupTerms(bias.float(), key, values)
