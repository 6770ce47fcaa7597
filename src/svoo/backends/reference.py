"""The definition: masked softmax over all pairs, in float32 or float64. Slow, and `N x M` in
memory."""

from __future__ import annotations

import torch
from torch import Tensor

from svoo.backends.base import Attention
from svoo.core.plan import BlockPlan
from svoo.core.validate import accumulation_dtype


class ReferenceBackend:
    """Runs any plan on any device, slowly; the other backends are tested against it."""

    name = "reference"
    workspace_bytes = 0

    def why_not(self, query: Tensor, plan: BlockPlan) -> str | None:  # noqa: ARG002 (never refuses)
        """Return None: it runs everywhere."""
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
        """Attend over the kept pairs; a left-out compensated block is one more key (see
        `BlockPlan`)."""
        dtype = accumulation_dtype(query)
        query_wide, key_wide, value_wide = (tensor.to(dtype) for tensor in (query, key, value))
        logits = query_wide @ key_wide.transpose(2, 3) * scale
        logits = logits.masked_fill(~plan.to_dense_mask(), -torch.inf)
        if plan.compensate is not None:
            mean_key = _block_means(key_wide, plan)
            extra = query_wide @ mean_key.transpose(2, 3) * scale
            log_sizes = plan.key_sizes.to(dtype).log()  # log 0: an empty block adds nothing
            extra = extra + log_sizes.unsqueeze(2)
            left_out = ~plan.keep & plan.compensate.unsqueeze(2)
            rows = plan.query_blocks().unsqueeze(-1).expand(*extra.shape)
            extra = extra.masked_fill(~left_out.gather(2, rows), -torch.inf)
            logits = torch.cat((logits, extra), dim=-1)
            value_wide = torch.cat((value_wide, _block_means(value_wide, plan)), dim=2)
        output = (logits.softmax(dim=-1) @ value_wide).to(query.dtype)
        return Attention(output, logits.logsumexp(dim=-1) if return_lse else None)


def _block_means(tokens: Tensor, plan: BlockPlan) -> Tensor:
    """Return the mean of tokens `[B, H, M, D]` over each key block, `[B, H, Ck, D]`; 0 for empty
    blocks."""
    one_hot = torch.nn.functional.one_hot(plan.key_blocks(), plan.key_sizes.shape[2]).to(tokens)
    sums = one_hot.transpose(2, 3) @ tokens
    return sums / plan.key_sizes.clamp(min=1).unsqueeze(-1)
