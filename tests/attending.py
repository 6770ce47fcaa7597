"""The attention kernel on a device, and what it must give: the reference in float64."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import torch
from making import map_tensors, plan_on
from torch import Tensor

from svoo import BlockPlan, FarTerms, run_plan
from svoo.backends import Attention, reference
from svoo.core.terms import Terms
from svoo.kernels.triton.centroids import fill_means
from svoo.kernels.triton.sparse import sparse_attention
from svoo.kernels.triton.tiles import Tile

SMALL = Tile(16, 32, warps=4, stages=1)
FLOAT32 = 2e-5
"""What sums of float32 numbers lose, of logits and of values of size 1 to 10."""
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""What rounding to the nearest number of a dtype changes at most, relative to the number."""
Tokens = tuple[Tensor, Tensor, Tensor]


def attend(
    tokens: Tokens,
    plan: BlockPlan,
    device: torch.device,
    *,
    scale: float = 0.2,
    tile: Tile | None = SMALL,
    only_terms: bool = False,
) -> Attention:
    """Run the kernel; results come back to the CPU."""
    query, key, value = (tensor.to(device) for tensor in tokens)
    plan = plan_on(device, plan)
    output, lse = sparse_attention(
        query,
        key,
        value,
        plan,
        scale=scale,
        return_lse=True,
        only_terms=only_terms,
        tile=tile,
    )
    assert lse is not None
    return Attention(output.cpu(), lse.cpu())


def exact(tokens: Tokens, plan: BlockPlan, scale: float, device: torch.device) -> Attention:
    """Return the reference in float64, with block means as `fill_means` rounds them: that kernel
    has its own test."""
    query, key, value = (tensor.double() for tensor in tokens)

    def rounded_means(wide: Tensor, plan: BlockPlan) -> Tensor:
        here = plan_on(device, plan)
        shape = (*plan.key_sizes.shape, wide.shape[3])
        means = torch.zeros(shape, dtype=tokens[0].dtype, device=device)
        fill_means(wide.to(device, tokens[0].dtype), here.key_order, here.key_sizes, means)
        return means.cpu().double()

    if isinstance(plan.terms, FarTerms):
        wide = map_tensors(plan.terms, lambda part: part.double() if part.ndim == 5 else part)
        plan = replace(plan, terms=wide)
    with patch.object(reference, "block_means", rounded_means):
        return run_plan(query, key, value, plan, backend="reference", scale=scale, return_lse=True)


def assert_exact(
    got: Attention, tokens: Tokens, plan: BlockPlan, scale: float, device: torch.device
) -> None:
    """Refuse what arithmetic does not explain.

    Weights are rounded before they meet the values, and so is the output: each changes it by at
    most ROUNDING times sum w |v|. The log-sum-exp is made of weights that are not rounded.
    """
    output, lse = exact(tokens, plan, scale, device)
    sizes = replace(plan, terms=_absolute_values(plan))
    reach = exact((tokens[0], tokens[1], tokens[2].abs()), sizes, scale, device).output
    limit = 2 * ROUNDING[tokens[0].dtype] * reach + FLOAT32 * (1 + reach)
    apart = (got.output.double() - output).abs()
    assert bool((apart <= limit).all()), f"{float((apart / limit).max()):.3f} of the limit"
    assert got.lse is not None and lse is not None
    torch.testing.assert_close(got.lse.double(), lse, atol=FLOAT32, rtol=FLOAT32)


def _absolute_values(plan: BlockPlan) -> Terms | None:
    terms = plan.terms
    if not isinstance(terms, FarTerms):
        return terms
    groups = terms.groups
    if groups is not None:
        groups = replace(groups, value=groups.value.abs())
    return replace(terms, value=terms.value.abs(), groups=groups)
