"""BlockPlan: all that a backend needs to run a sparse attention call, whatever method made it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from svoo.core.clustering import CoClusters
from svoo.core.layout import VideoLayout
from svoo.core.plan_checks import check_labels, check_tensors, check_values
from svoo.core.sorting import blocks_of_tokens, sort_labels
from svoo.core.terms import FarTerms, MeanTerms, Terms, pad_terms
from svoo.errors import PlanError

_CHUNK = 1 << 22  # numbers held at a time while kept keys are counted


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """Token orders, block sizes, and which (query block, key block) pairs are computed.

    query_order `[B, H, N]`, key_order `[B, H, M]`: permuted[i] = tokens[order[i]]; None leaves
    them as they are. query_sizes `[B, H, Cq]`, key_sizes `[B, H, Ck]`: consecutive blocks of
    permuted tokens; zeros allowed. keep `[B, H, Cq, Ck]` bool. `terms` say what stands for the
    pairs that are left out: nothing (None), `MeanTerms`, or `FarTerms`. `check=False` trusts the
    maker and does not wait for the device.

    `query_tokens`, `key_tokens` are N and M. Left at 0 they are taken from the orders; where there
    is none the sizes are added up once, which waits for the device: give them where that matters.
    """

    query_order: Tensor | None
    key_order: Tensor | None
    query_sizes: Tensor
    key_sizes: Tensor
    keep: Tensor
    terms: Terms | None = None
    check: bool = field(default=True, repr=False)
    query_tokens: int = field(default=0, kw_only=True)
    key_tokens: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        """Count the tokens, and refuse a plan that contradicts itself."""
        if self.check:
            check_tensors(self)
        for name in ("query_order", "key_order", "query_sizes", "key_sizes"):
            numbers: Tensor | None = getattr(self, name)
            if numbers is not None and numbers.is_neg():  # torch itself misreads these
                object.__setattr__(self, name, numbers.resolve_neg())
        for side in ("query", "key"):
            if not getattr(self, f"{side}_tokens"):
                order, sizes = getattr(self, f"{side}_order"), getattr(self, f"{side}_sizes")
                count = int(sizes[0, 0].sum()) if order is None else order.shape[-1]
                object.__setattr__(self, f"{side}_tokens", count)
        if self.check:
            check_values(self)

    @classmethod
    def from_labels(
        cls,
        query_labels: Tensor,
        key_labels: Tensor,
        keep: Tensor,
        terms: Terms | None = None,
        *,
        check: bool = True,
    ) -> BlockPlan:
        """Make a plan from block labels `[B, H, N]`, `[B, H, M]`; tokens of a block stay in their
        order."""
        if check:
            check_labels("query", query_labels, keep, blocks=keep.shape[2])
            check_labels("key", key_labels, keep, blocks=keep.shape[3])
        query_order, query_sizes = sort_labels(query_labels, keep.shape[2])
        key_order, key_sizes = sort_labels(key_labels, keep.shape[3])
        return cls(query_order, key_order, query_sizes, key_sizes, keep, terms, check)

    def kept_keys(self) -> Tensor:
        """Return how many key tokens each query block sees, int64 `[B, H, Cq]`.

        Whole numbers are added, not multiplied: a GPU has no products of integers, rounds those of
        float32, and some devices have no float64.
        """
        sizes = self.key_sizes.int().unsqueeze(2)
        batch, heads, _, key_blocks = self.keep.shape
        rows = max(1, _CHUNK // (batch * heads * key_blocks))
        counts = [torch.where(part, sizes, 0).sum(dim=-1) for part in self.keep.split(rows, dim=2)]
        return torch.cat(counts, dim=2)

    def density(self, padding: Tensor | None = None) -> Tensor:
        """Return the fraction of query-key pairs that is computed, `[B, H]`; terms do not count.

        `padding` `[B]` counts padding tokens: never kept as keys and, as queries, part of the text
        block, which sees every real key. They are left out of both sides of the fraction.
        """
        pairs = (self.kept_keys() * self.query_sizes).sum(dim=-1)
        queries, keys = self.query_sizes.sum(dim=-1), self.key_sizes.sum(dim=-1)
        if padding is not None:
            padding = padding.to(keys).unsqueeze(-1)
            queries, keys = queries - padding, keys - padding
            pairs = pairs - padding * keys
        return pairs.float() / (queries * keys).float()

    def of_heads(self, heads: slice) -> BlockPlan:
        """Return the plan of some heads; of plans without terms."""
        assert self.terms is None
        orders = self.query_order, self.key_order
        return replace(
            self,
            query_order=None if orders[0] is None else orders[0][:, heads],
            key_order=None if orders[1] is None else orders[1][:, heads],
            query_sizes=self.query_sizes[:, heads],
            key_sizes=self.key_sizes[:, heads],
            keep=self.keep[:, heads],
            check=False,
        )

    def to_dense_mask(self) -> Tensor:
        """Return which pairs are computed in the original token order, bool `[B, H, N, M]`: for
        tests and pictures."""
        rows = self.query_blocks().unsqueeze(-1)
        columns = self.key_blocks().unsqueeze(-2)
        by_row = self.keep.gather(2, rows.expand(*rows.shape[:3], self.keep.shape[3]))
        return by_row.gather(
            3, columns.expand(*columns.shape[:2], rows.shape[2], columns.shape[3])
        )

    def query_blocks(self) -> Tensor:
        """Return the block of every query token in the original order, `[B, H, N]`."""
        return blocks_of_tokens(self.query_sizes, self.query_order, self.query_tokens)

    def key_blocks(self) -> Tensor:
        """Return the block of every key token in the original order, `[B, H, M]`."""
        return blocks_of_tokens(self.key_sizes, self.key_order, self.key_tokens)

    def permute_queries(self, tokens: Tensor) -> Tensor:
        """Bring `[B, H, N, D]` into block order."""
        return _permute(tokens, self.query_order)

    def permute_keys(self, tokens: Tensor) -> Tensor:
        """Bring `[B, H, M, D]` into block order."""
        return _permute(tokens, self.key_order)

    def restore_queries(self, permuted: Tensor) -> Tensor:
        """Bring `[B, H, N]` or `[B, H, N, D]` from block order back into the original one."""
        order = self.query_order
        if order is None:
            return permuted
        if permuted.ndim == 4:
            order = order.unsqueeze(-1).expand_as(permuted)
        return torch.empty_like(permuted).scatter_(2, order, permuted)

    def check_fits(self, query: Tensor, key: Tensor) -> None:
        """Refuse query `[B, H, N, D]` and key `[B, H, M, D]` that the plan was not made for."""
        expected = (*query.shape[:2], query.shape[2], key.shape[2])
        got = (*self.keep.shape[:2], self.query_tokens, self.key_tokens)
        if expected != got:
            raise PlanError(
                f"the tensors have batch, heads, query tokens, key tokens {list(expected)}, the "
                f"plan is for {list(got)}"
            )
        terms = self.terms
        if isinstance(terms, FarTerms):
            fits = (terms.value.shape[4], terms.value.dtype) == (query.shape[3], query.dtype)
            if not fits:
                raise PlanError(
                    f"the tokens have head size {query.shape[3]} in {query.dtype}, the plan's "
                    f"terms {terms.value.shape[4]} in {terms.value.dtype}"
                )


def plan_from_clusters(
    clusters: CoClusters, keep: Tensor, *, compensate: bool, layout: VideoLayout | None = None
) -> BlockPlan:
    """Make a plan from clusters of the video tokens and keep `[B, H, Cq, Ck]`, with mean terms or
    none, and the text and padding of a layout."""
    terms = MeanTerms(clusters.key.sizes > 0) if compensate else None
    query_side, key_side = clusters.query.sorted(), clusters.key.sorted()
    orders, sizes = zip(query_side, key_side, strict=True)
    plan = BlockPlan(*orders, *sizes, keep, terms, check=False)
    return plan if layout is None else add_text(plan, layout, check=False)


def add_text(plan: BlockPlan, layout: VideoLayout, *, check: bool = True) -> BlockPlan:
    """Return a plan of the video tokens with the layout's text and padding as further blocks.

    Text: one query block and one key block, always kept, without terms. Padding: a key block that
    is never kept; as queries, padding joins the text block. They stand behind the video's blocks,
    or in front of them if the text comes first, so tokens without an order stay without one.
    `check` looks at the counts of real text, which waits for the device.
    """
    if (plan.query_tokens, plan.key_tokens) != (layout.video, layout.video):
        raise PlanError(
            f"the layout has {layout.frames} x {layout.height} x {layout.width} = {layout.video} "
            f"video tokens, the plan {plan.query_tokens} queries and {plan.key_tokens} keys: make "
            "it for the video tokens alone"
        )
    batch, heads = plan.keep.shape[:2]
    layout.check(batch, layout.tokens, values=check)
    if layout.text == 0:
        return plan

    def join(video: Tensor, text: Tensor, axis: int) -> Tensor:
        return torch.cat((text, video) if layout.text_first else (video, text), dim=axis)

    def join_order(order: Tensor | None) -> Tensor | None:
        if order is None:
            return None
        text = torch.arange(layout.text, device=order.device) + layout.text_start
        return join(order + layout.video_start, text.expand(batch, heads, layout.text), 2)

    total = plan.query_sizes.new_full((batch,), layout.text)
    valid = total
    if layout.valid_text is not None:  # a count that does not fit must not reach a kernel
        valid = layout.valid_text.to(total).clamp(0, layout.text)
    text_sizes = torch.stack((valid, total - valid), dim=-1).unsqueeze(1).expand(batch, heads, 2)
    keep = join(plan.keep, plan.keep.new_ones(batch, heads, 1, plan.keep.shape[3]), 2)
    sees_text = keep.new_ones(batch, heads, keep.shape[2], 1)
    keep = join(keep, torch.cat((sees_text, ~sees_text), dim=3), 3)
    more = ((1, 0), (2, 0)) if layout.text_first else ((0, 1), (0, 2))
    return BlockPlan(
        join_order(plan.query_order),
        join_order(plan.key_order),
        join(plan.query_sizes, total.view(batch, 1, 1).expand(batch, heads, 1), 2),
        join(plan.key_sizes, text_sizes, 2),
        keep,
        pad_terms(plan.terms, *more),
        check=False,
        query_tokens=layout.tokens,
        key_tokens=layout.tokens,
    )


def _permute(tokens: Tensor, order: Tensor | None) -> Tensor:
    return tokens if order is None else tokens.gather(2, order.unsqueeze(-1).expand_as(tokens))
