"""What a plan says of the pairs it leaves out: nothing, or terms that stand for them in the
softmax."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class MeanTerms:
    """A left-out key block enters the softmax as one term: its mean key, its mean value, and the
    logarithm of its size as bias.

    compensate bool `[B, H, Ck]`: the key blocks that do so for every query block that leaves them
    out; empty blocks add nothing.
    """

    compensate: Tensor


@dataclass(frozen=True, eq=False)
class GroupTerms:
    """Terms that each stand for several key blocks of a query block.

    bias float32 `[B, H, Cq, G]`; key and value `[B, H, Cq, G, D]` in the tokens' dtype. Group g
    enters the softmax of a token q of query block i with logit q.key_ig * scale + bias_ig. Bias
    minus infinity: it adds nothing, and its key and value are not read.
    """

    bias: Tensor
    key: Tensor
    value: Tensor


@dataclass(frozen=True, eq=False)
class FarTerms:
    """A left-out key block enters the softmax as its query block sees it: terms of the far field.

    middle bool `[B, H, Cq, Ck]`: the blocks with a term, none of them kept; bias float32
    `[B, H, Cq, Ck]`; value `[B, H, Cq, Ck, D]` in the tokens' dtype. Block j enters the softmax of
    a token q of query block i with logit q.c_j * scale + bias_ij and value_ij, where c_j is the
    mean key of block j, rounded to the tokens' dtype. An empty block, or bias minus infinity, adds
    nothing. Bias and value are read only where a term enters (`enters`). `groups` stand for blocks
    that are neither kept nor in the middle.
    """

    middle: Tensor
    bias: Tensor
    value: Tensor
    groups: GroupTerms | None = None

    def enters(self, key_sizes: Tensor) -> Tensor:
        """Return which blocks add a term, bool `[B, H, Cq, Ck]`, from key_sizes `[B, H, Ck]`."""
        return self.middle & (self.bias != -torch.inf) & (key_sizes > 0).unsqueeze(2)


Terms = MeanTerms | FarTerms


def compensated(terms: Terms | None) -> Tensor | None:
    """Return the key blocks that have mean terms, bool `[B, H, Ck]`; None without such terms."""
    return terms.compensate if isinstance(terms, MeanTerms) else None


def tensors_of(terms: Terms | None) -> dict[str, Tensor]:
    """Return the tensors of terms by their names."""
    if terms is None:
        return {}
    if isinstance(terms, MeanTerms):
        return {"compensate": terms.compensate}
    found = {"middle": terms.middle, "bias": terms.bias, "value": terms.value}
    if terms.groups is not None:
        groups = terms.groups
        found |= {
            "groups.bias": groups.bias,
            "groups.key": groups.key,
            "groups.value": groups.value,
        }
    return found


def pad_terms(
    terms: Terms | None, query_blocks: tuple[int, int], key_blocks: tuple[int, int]
) -> Terms | None:
    """Return terms with so many blocks more (in front, behind) on both sides, which have none."""
    if terms is None:
        return None
    if isinstance(terms, MeanTerms):
        return MeanTerms(_pad(terms.compensate, {2: key_blocks}, value=False))
    both = {2: query_blocks, 3: key_blocks}
    groups = terms.groups
    if groups is not None:
        only_queries = {2: query_blocks}
        groups = GroupTerms(
            _pad(groups.bias, only_queries, value=-torch.inf),
            _pad(groups.key, only_queries, value=0.0),
            _pad(groups.value, only_queries, value=0.0),
        )
    return FarTerms(
        _pad(terms.middle, both, value=False),
        _pad(terms.bias, both, value=-torch.inf),
        _pad(terms.value, both, value=0.0),
        groups,
    )


def _pad(tensor: Tensor, more: dict[int, tuple[int, int]], *, value: float) -> Tensor:
    """Return a tensor with so many slices of `value` in front and behind, by axis."""
    widths = [width for axis in reversed(range(tensor.ndim)) for width in more.get(axis, (0, 0))]
    return torch.nn.functional.pad(tensor, widths, value=value)
