"""The terms of a plan as rows that the attention kernel reads beside tokens."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from svoo.core.layout import plain
from svoo.core.plan import BlockPlan
from svoo.core.terms import FarTerms, GroupTerms, MeanTerms
from svoo.kernels.triton.centroids import fill_means
from svoo.kernels.triton.ranges import Kept, Pieces, keep_pieces

_BINARY = 1 / math.log(2)  # the kernel's logits are binary


class BlockRows(NamedTuple):
    """One row for each key block: key `[B, H, T, D]`; value `[B, H, T, D]`, or `[B, H, Cq, T, D]`
    as each query block sees it; bias float32 `[B, H, Cq, T]`, binary, minus infinity where a row
    adds nothing; `entered`: for each query block the rows that do."""

    key: Tensor
    value: Tensor
    bias: Tensor
    entered: Kept


class TermRows(NamedTuple):
    """All rows of a plan; None: it has none of the kind. The groups' bias is binary."""

    blocks: BlockRows | None = None
    groups: GroupTerms | None = None

    def arguments(self) -> dict[str, object]:
        """Return the kernel's arguments."""
        blocks, groups = self.blocks, self.groups
        return {
            "term_key": None if blocks is None else blocks.key,
            "term_value": None if blocks is None else blocks.value,
            "term_bias": None if blocks is None else blocks.bias,
            "term_entries": None if blocks is None else blocks.entered.entries,
            "term_counts": None if blocks is None else blocks.entered.counts,
            "group_key": None if groups is None else groups.key,
            "group_value": None if groups is None else groups.value,
            "group_bias": None if groups is None else groups.bias,
            "terms": 0 if blocks is None else blocks.key.shape[2],
            "groups": 0 if groups is None else groups.bias.shape[3],
            "VALUE_BY_BLOCK": blocks is not None and blocks.value.ndim == 5,
        }


def find_rows(key: Tensor, value: Tensor, plan: BlockPlan) -> TermRows:
    """Return the rows of a plan's terms for key, value `[B, H, M, D]`. Does not wait for the
    device."""
    order, sizes, terms = plan.key_order, plan.key_sizes, plan.terms
    if terms is None:
        return TermRows()
    shape = (*sizes.shape, key.shape[3])
    mean_key = key.new_zeros(shape)  # rounded to the tokens' dtype
    fill_means(key, order, sizes, mean_key)
    if isinstance(terms, MeanTerms):
        mean_value = value.new_zeros(shape)
        fill_means(value, order, sizes, mean_value)
        logs = sizes.float().log2().masked_fill(~terms.compensate, -torch.inf)
        bias = logs.unsqueeze(2).masked_fill(plan.keep, -torch.inf)
        enters = bias != -torch.inf
        return TermRows(BlockRows(mean_key, mean_value, bias, _list(enters)))
    return TermRows(_far_rows(mean_key, terms, sizes), _groups(terms.groups))


def _far_rows(mean_key: Tensor, terms: FarTerms, sizes: Tensor) -> BlockRows:
    enters = terms.enters(sizes)
    bias = terms.bias.float() * _BINARY
    return BlockRows(mean_key, plain(terms.value), bias.contiguous(), _list(enters))


def _groups(groups: GroupTerms | None) -> GroupTerms | None:
    if groups is None:
        return None
    bias = (groups.bias.float() * _BINARY).contiguous()
    return GroupTerms(bias, plain(groups.key), plain(groups.value))


def _list(enters: Tensor) -> Kept:
    """List the marked key blocks of every query block, `[B, H, Cq, Ck]`: each is a piece of one
    token."""
    blocks = torch.arange(enters.shape[3], dtype=torch.int32, device=enters.device)
    blocks = blocks.expand(*enters.shape[:2], -1).contiguous()
    return keep_pieces(Pieces(blocks, blocks, torch.ones_like(blocks)), enters)
