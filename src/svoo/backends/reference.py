"""The definition: masked softmax over all pairs, in float32 or float64. Slow, and `N x M` in
memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from svoo.backends.base import Attention, Workspace
from svoo.core.needs import Needs
from svoo.core.plan import BlockPlan
from svoo.core.terms import MeanTerms
from svoo.core.validate import accumulation_dtype


class ReferenceBackend:
    """Runs any plan on any device, slowly; the other backends are tested against it."""

    name = "reference"
    needs = Needs()

    def why_not(self, query: Tensor, plan: BlockPlan) -> str | None:
        """Return None: it runs everything."""
        return self.needs.why_not(query, plan.terms)

    def run(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plan: BlockPlan,
        *,
        scale: float,
        return_lse: bool,
        workspace: Workspace,  # noqa: ARG002 (keeps nothing)
    ) -> Attention:
        """Attend over the kept pairs; each term (see `svoo.core.terms`) is one more key."""
        dtype = accumulation_dtype(query)
        query_wide, key_wide, value_wide = (tensor.to(dtype) for tensor in (query, key, value))
        logits = query_wide @ key_wide.transpose(2, 3) * scale
        logits = logits.masked_fill(~plan.to_dense_mask(), -torch.inf)
        more = _find_terms(key_wide, value_wide, query.dtype, plan)
        logits = torch.cat((logits, *(_term_logits(query_wide, m, plan, scale) for m in more)), -1)
        weights = logits.softmax(dim=-1).split((key.shape[2], *(m.bias.shape[3] for m in more)), 3)
        output = weights[0] @ value_wide
        for term_weights, terms in zip(weights[1:], more, strict=True):
            output += _by_query_block(term_weights, terms.value, plan)
        lse = logits.logsumexp(dim=-1) if return_lse else None
        return Attention(output.to(query.dtype), lse)


class _BlockTerms(NamedTuple):
    """Terms of every query block: bias `[B, H, Cq, T]`; key and value `[B, H, Cq, T, D]`, or `[B,
    H, 1, T, D]` where all blocks have the same."""

    bias: Tensor
    key: Tensor
    value: Tensor


def _find_terms(
    key: Tensor, value: Tensor, dtype: torch.dtype, plan: BlockPlan
) -> list[_BlockTerms]:
    """Return all terms of a plan for key, value `[B, H, M, D]`, which were of `dtype`."""
    terms, wide = plan.terms, key.dtype
    if terms is None:
        return []
    mean_key = block_means(key, plan).unsqueeze(2)
    if isinstance(terms, MeanTerms):
        log_sizes = plan.key_sizes.to(wide).log().unsqueeze(2)  # log 0: an empty block
        left_out = ~plan.keep & terms.compensate.unsqueeze(2)
        bias = torch.where(left_out, log_sizes, -torch.inf)
        return [_BlockTerms(bias, mean_key, block_means(value, plan).unsqueeze(2))]
    rounded = mean_key.to(dtype).to(wide)
    bias = terms.bias.to(wide).masked_fill(~terms.enters(plan.key_sizes), -torch.inf)
    found = [_BlockTerms(bias, rounded, _where_read(terms.value, bias))]
    if terms.groups is not None:
        bias = terms.groups.bias.to(wide)
        parts = (_where_read(part, bias) for part in (terms.groups.key, terms.groups.value))
        found.append(_BlockTerms(bias, *parts))
    return found


def _where_read(rows: Tensor, bias: Tensor) -> Tensor:
    """Return rows `[..., T, D]` with 0 where the bias `[..., T]` says that there is no term."""
    return torch.where((bias != -torch.inf).unsqueeze(-1), rows.to(bias.dtype), 0)


def _term_logits(query: Tensor, terms: _BlockTerms, plan: BlockPlan, scale: float) -> Tensor:
    """Return the logits of query `[B, H, N, D]` with the terms of each one's block, `[B, H, N,
    T]`."""
    products = _by_query_block(query, terms.key.transpose(3, 4), plan) * scale
    rows = plan.query_blocks().unsqueeze(-1).expand_as(products)
    return products + terms.bias.gather(2, rows)


def _by_query_block(rows: Tensor, matrices: Tensor, plan: BlockPlan) -> Tensor:
    """Multiply rows `[B, H, N, X]`, each with its query block's matrix of `[B, H, Cq, X, Y]`
    (or the one of all blocks): `[B, H, N, Y]`."""
    if matrices.shape[2] == 1:
        return rows @ matrices[:, :, 0]
    blocks = plan.query_blocks().unsqueeze(-1)
    found = rows.new_zeros(*rows.shape[:3], matrices.shape[4])
    for block in range(matrices.shape[2]):
        found = torch.where(blocks == block, rows @ matrices[:, :, block], found)
    return found


def block_means(tokens: Tensor, plan: BlockPlan) -> Tensor:
    """Return the mean of tokens `[B, H, M, D]` over each key block, `[B, H, Ck, D]`; 0 for empty
    blocks."""
    one_hot = torch.nn.functional.one_hot(plan.key_blocks(), plan.key_sizes.shape[2]).to(tokens)
    sums = one_hot.transpose(2, 3) @ tokens
    return sums / plan.key_sizes.clamp(min=1).unsqueeze(-1)
