"""What is asked of a plan that somebody else made; a kernel would read past its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from svoo.core.terms import FarTerms, MeanTerms, tensors_of
from svoo.errors import PlanError

if TYPE_CHECKING:
    from svoo.core.plan import BlockPlan

MOST_TOKENS = 2**31 - 1  # kernels count tokens in 32 bits, and a sum of sizes cannot wrap


def check_tensors(plan: BlockPlan) -> None:
    """Refuse tensors of a plan that do not fit together; does not wait for the device."""
    _check_types(plan)
    _check_shapes(plan)


def check_values(plan: BlockPlan) -> None:
    """Refuse a plan whose numbers contradict one another; waits for the device."""
    _check_side("query", plan.query_sizes, plan.query_order, plan.query_tokens)
    _check_side("key", plan.key_sizes, plan.key_order, plan.key_tokens)
    _check_blind_blocks(plan)
    if isinstance(plan.terms, FarTerms):
        _check_far_values(plan, plan.terms)


def check_labels(name: str, labels: Tensor, keep: Tensor, *, blocks: int) -> None:
    """Refuse labels that are not whole numbers `[B, H, tokens]` below the number of blocks."""
    if labels.ndim != 3 or labels.shape[:2] != keep.shape[:2] or not _is_whole(labels):
        raise PlanError(
            f"{name}_labels must be whole numbers [{keep.shape[0]}, {keep.shape[1]}, tokens] to "
            f"go with keep, got {labels.dtype} {list(labels.shape)}"
        )
    lowest, highest = (int(extreme) for extreme in labels.aminmax())
    if lowest < 0 or highest >= blocks:
        raise PlanError(
            f"{name}_labels must be from 0 to {blocks - 1}, the {name} blocks of keep, got "
            f"{lowest} to {highest}"
        )


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _tensors(plan: BlockPlan) -> dict[str, Tensor]:
    """Return all tensors of a plan by name."""
    names = ("keep", "query_sizes", "key_sizes", "query_order", "key_order")
    own = {name: getattr(plan, name) for name in names}
    orders = ("query_order", "key_order")
    present = {
        name: tensor for name, tensor in own.items() if name not in orders or tensor is not None
    }
    return present | tensors_of(plan.terms)


def _check_types(plan: BlockPlan) -> None:
    if not (plan.terms is None or isinstance(plan.terms, MeanTerms | FarTerms)):
        raise PlanError(
            f"terms must be None, MeanTerms or FarTerms, got {type(plan.terms).__name__}"
        )
    for name, tensor in _tensors(plan).items():
        if not isinstance(tensor, Tensor):
            raise PlanError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.device != plan.keep.device:
            raise PlanError(f"{name} is on {tensor.device}, but keep is on {plan.keep.device}")


def _check_shapes(plan: BlockPlan) -> None:
    keep = plan.keep
    if keep.ndim != 4 or keep.dtype != torch.bool or 0 in keep.shape:
        raise PlanError(
            f"keep must be bool [B, H, query blocks, key blocks], none of them 0, got "
            f"{keep.dtype} {list(keep.shape)}"
        )
    batch, heads, query_blocks, key_blocks = keep.shape
    _expect("query_sizes", plan.query_sizes, (batch, heads, query_blocks))
    _expect("key_sizes", plan.key_sizes, (batch, heads, key_blocks))
    for name in ("query_order", "key_order", "query_sizes", "key_sizes"):
        numbers: Tensor | None = getattr(plan, name)
        if numbers is not None and numbers.dtype != torch.int64:
            raise PlanError(f"{name} must be int64, got {numbers.dtype}: use {name}.long()")
    for name, order in (("query_order", plan.query_order), ("key_order", plan.key_order)):
        if order is not None and (order.ndim != 3 or order.shape[:2] != (batch, heads)):
            raise PlanError(f"{name} must be [{batch}, {heads}, tokens], got {list(order.shape)}")
    if isinstance(plan.terms, MeanTerms):
        _expect("compensate", plan.terms.compensate, (batch, heads, key_blocks), torch.bool)
    elif isinstance(plan.terms, FarTerms):
        _check_far_shapes(plan.terms, (batch, heads, query_blocks, key_blocks))


def _check_far_shapes(terms: FarTerms, blocks: tuple[int, int, int, int]) -> None:
    _expect("middle", terms.middle, blocks, torch.bool)
    _expect("bias", terms.bias, blocks, torch.float32)
    if terms.value.ndim != 5:
        raise PlanError(f"value must be {[*blocks, 'head size']}, got {list(terms.value.shape)}")
    size, dtype = terms.value.shape[4], terms.value.dtype
    _expect("value", terms.value, (*blocks, size))
    if not dtype.is_floating_point:
        raise PlanError(f"value must have the tokens' floating dtype, got {dtype}")
    if terms.groups is not None:
        groups = terms.groups
        count = groups.bias.shape[-1] if groups.bias.ndim else 0
        _expect("groups.bias", groups.bias, (*blocks[:3], count), torch.float32)
        _expect("groups.key", groups.key, (*blocks[:3], count, size), dtype)
        _expect("groups.value", groups.value, (*blocks[:3], count, size), dtype)


def _expect(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None
) -> None:
    if tensor.shape != shape:
        raise PlanError(f"{name} must be {list(shape)} to go with keep, got {list(tensor.shape)}")
    if dtype is not None and tensor.dtype != dtype:
        raise PlanError(f"{name} must be {str(dtype).removeprefix('torch.')}, got {tensor.dtype}")


def _check_side(name: str, sizes: Tensor, order: Tensor | None, tokens: int) -> None:
    """Refuse sizes that do not cut up the tokens, and an order that is no permutation."""
    if order is not None and order.shape[2] != tokens:
        raise PlanError(f"{name}_order is for {order.shape[2]} tokens, {name}_tokens is {tokens}")
    if not 1 <= tokens <= MOST_TOKENS:
        raise PlanError(f"a plan has 1 to {MOST_TOKENS} {name} tokens, got {tokens}")
    lowest, highest = (int(extreme) for extreme in sizes.aminmax())
    if lowest < 0:
        raise PlanError(f"{name}_sizes must not be negative, got {lowest}")
    if highest > tokens:  # also sizes so large that their sum wraps around to the right number
        raise PlanError(f"{name}_sizes must not pass the {tokens} tokens, got {highest}")
    totals = sizes.sum(dim=-1)
    if not bool((totals == tokens).all()):
        raise PlanError(
            f"{name}_sizes must sum to {tokens} tokens in every head, got sums "
            f"{int(totals.min())} to {int(totals.max())}"
        )
    if order is not None and not torch.equal(
        order.sort(dim=-1).values,
        torch.arange(tokens, device=order.device, dtype=order.dtype).expand_as(order),
    ):
        raise PlanError(f"{name}_order is not a permutation of 0 .. {tokens - 1} in every head")


def _check_blind_blocks(plan: BlockPlan) -> None:
    blind = (plan.kept_keys() == 0) & (plan.query_sizes > 0)
    if bool(blind.any()):
        batch, head, block = blind.nonzero()[0].tolist()
        raise PlanError(
            f"query block {block} of batch {batch}, head {head} keeps no key token "
            f"({int(blind.sum())} such blocks); every query block with tokens needs at least "
            "one kept key block with tokens"
        )


def _check_far_values(plan: BlockPlan, terms: FarTerms) -> None:
    """Refuse terms of kept blocks, and numbers that would spoil a softmax where they are read."""
    both = plan.keep & terms.middle
    if bool(both.any()):
        first = both.nonzero()[0].tolist()
        raise PlanError(
            f"keep and middle must have no block in common, got {int(both.sum())}, the first at "
            f"batch, head, query block, key block {first}: use middle & ~keep"
        )
    read = {
        "bias": (terms.bias, terms.middle),
        "value": (terms.value, terms.enters(plan.key_sizes)),
    }
    if terms.groups is not None:
        groups = terms.groups
        entering = groups.bias != -torch.inf
        read |= {
            "groups.bias": (groups.bias, torch.ones_like(entering)),
            "groups.key": (groups.key, entering),
            "groups.value": (groups.value, entering),
        }
    for name, (tensor, where) in read.items():
        numbers = tensor[where]
        good = numbers < torch.inf if "bias" in name else numbers.isfinite()  # false for NaN
        if not bool(good.all()):
            raise PlanError(f"{name} holds NaN or infinity where a term is read")
