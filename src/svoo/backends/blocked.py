"""Block-sparse attention with torch alone, made for the CPU: gather the kept keys of a query
block, then fused SDPA.

Keys and values of a head stand side by side in one buffer in block order, so that one copy brings
both. The means of the compensated blocks stand behind them as more keys, whose bias is the
logarithm of the block's size, or minus infinity for a block that is kept. Extra memory: one head's
keys and values, twice.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo.backends.base import Attention
from svoo.checks import accumulation_dtype
from svoo.plan import BlockPlan


class BlockedBackend:
    """Runs any plan on any device; fast on the CPU, where each query block is one fused attention
    call."""

    name = "blocked"

    def why_not(self, query: Tensor, plan: BlockPlan) -> str | None:  # noqa: ARG002 (never refuses)
        """Return None: torch is all it needs."""
        return None

    def run(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plan: BlockPlan,
        *,
        scale: float,
        return_lse: bool,
    ) -> Attention:
        """Attend head by head, query block by query block."""
        batch, heads, tokens, _ = query.shape
        output = torch.empty_like(query)
        lse = (
            query.new_empty(batch, heads, tokens, dtype=accumulation_dtype(query))
            if return_lse
            else None
        )
        query_sizes = plan.query_sizes.tolist()  # waits for the device: block sizes steer the loop
        buffer = _Buffer(key, plan)
        for b in range(batch):
            for h in range(heads):
                buffer.fill(key[b, h], value[b, h], plan, b, h)
                order = None if plan.query_order is None else plan.query_order[b, h]
                queries = query[b, h] if order is None else query[b, h].index_select(0, order)
                results = torch.empty_like(queries)
                sums = None if lse is None else lse.new_empty(tokens)
                start = 0
                for block, count in enumerate(query_sizes[b][h]):
                    if count:
                        rows = slice(start, start + count)
                        keys, values, bias = buffer.gather(block)
                        part = _attend(
                            queries[rows], keys, values, bias, scale, return_lse=return_lse
                        )
                        results[rows] = part.output
                        if sums is not None and part.lse is not None:
                            sums[rows] = part.lse
                        start += count
                _put_back(output[b, h], order, results)
                if lse is not None and sums is not None:
                    _put_back(lse[b, h], order, sums)
        return Attention(output, lse)


class _Buffer:
    """One head's keys and values in block order, its block means behind them, and room for what a
    query block keeps."""

    def __init__(self, key: Tensor, plan: BlockPlan) -> None:
        self.tokens, self.size = key.shape[2], key.shape[3]
        self.blocks = 0 if plan.compensate is None else plan.keep.shape[3]
        rows = self.tokens + self.blocks
        self.source = key.new_empty(rows, 2 * self.size)
        self.gathered = torch.empty_like(self.source)
        self.bias = None if plan.compensate is None else key.new_zeros(rows)

    def fill(self, key: Tensor, value: Tensor, plan: BlockPlan, b: int, h: int) -> None:
        """Take keys and values `[M, D]` of one head."""
        self.keep = plan.keep[b, h]
        sizes = plan.key_sizes[b, h]
        self.labels = torch.repeat_interleave(
            torch.arange(len(sizes), device=sizes.device), sizes, output_size=self.tokens
        )
        self.everything = (self.keep | (sizes == 0)).all(dim=-1).tolist()
        if plan.key_order is None:
            self.source[: self.tokens, : self.size] = key
            self.source[: self.tokens, self.size :] = value
        else:
            order = plan.key_order[b, h]
            self.source[: self.tokens, : self.size] = key.index_select(0, order)
            self.source[: self.tokens, self.size :] = value.index_select(0, order)
        if plan.compensate is not None:
            dtype = accumulation_dtype(key)
            tokens = self.source[: self.tokens].to(dtype)
            sums = tokens.new_zeros(self.blocks, 2 * self.size).index_add_(0, self.labels, tokens)
            self.source[self.tokens :] = sums / sizes.clamp(min=1).unsqueeze(-1)
            enters = plan.compensate[b, h] & (sizes > 0)
            self.log_sizes = torch.where(enters, sizes.to(dtype).log(), -torch.inf).to(key.dtype)

    def gather(self, block: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the keys `[m, D]`, values `[m, D]` and bias `[m]` (or None) that one query block
        attends to."""
        if self.everything[block]:
            rows = self.source[: self.tokens]
            return rows[:, : self.size], rows[:, self.size :], None
        keep = self.keep[block]
        kept = keep[self.labels].nonzero().squeeze(-1)
        count = len(kept)
        rows = self.gathered[: count + self.blocks]
        torch.index_select(self.source[: self.tokens], 0, kept, out=rows[:count])
        if self.bias is None:
            return rows[:, : self.size], rows[:, self.size :], None
        rows[count:] = self.source[self.tokens :]
        bias = self.bias[: count + self.blocks]
        bias[:count] = 0
        bias[count:] = self.log_sizes.masked_fill(keep, -torch.inf)
        return rows[:, : self.size], rows[:, self.size :], bias


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    scale: float,
    *,
    return_lse: bool,
) -> Attention:
    """Attend from `[n, D]` to `[m, D]` with one bias a key."""
    if not return_lse:
        mask = None if bias is None else bias.view(1, 1, 1, -1)
        output = scaled_dot_product_attention(
            query[None, None], key[None, None], value[None, None], attn_mask=mask, scale=scale
        )
        return Attention(output[0, 0], None)
    # The public fused call gives no log-sum-exp.
    dtype = accumulation_dtype(query)
    logits = query.to(dtype) @ key.to(dtype).T * scale
    if bias is not None:
        logits += bias
    lse = logits.logsumexp(dim=-1)
    weights = (logits - lse.unsqueeze(-1)).exp_()
    return Attention((weights @ value.to(dtype)).to(query.dtype), lse)


def _put_back(target: Tensor, order: Tensor | None, results: Tensor) -> None:
    if order is None:
        target.copy_(results)
    else:
        target.index_copy_(0, order, results)
