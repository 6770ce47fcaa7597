"""BlockPlan: all that a backend needs to run a sparse attention call, whatever method made it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from svoo.core.clustering import CoClusters
from svoo.core.layout import VideoLayout
from svoo.errors import PlanError


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """Token orders, block sizes, and which (query block, key block) pairs are computed.

    query_order `[B, H, N]`, key_order `[B, H, M]`: permuted[i] = tokens[order[i]]; None leaves
    them as they are. query_sizes `[B, H, Cq]`, key_sizes `[B, H, Ck]`: consecutive blocks of
    permuted tokens; zeros allowed. keep `[B, H, Cq, Ck]` bool. compensate `[B, H, Ck]` bool or
    None: the key blocks that enter the softmax of every query block that leaves them out as one
    term, with their mean key, mean value and the logarithm of their size. `check=False` trusts the
    maker and does not wait for the device.
    """

    query_order: Tensor | None
    key_order: Tensor | None
    query_sizes: Tensor
    key_sizes: Tensor
    keep: Tensor
    compensate: Tensor | None = None
    check: bool = field(default=True, repr=False)

    def __post_init__(self) -> None:
        """Refuse a plan that contradicts itself."""
        if self.check:
            self._check_shapes()
            self._check_values()

    @classmethod
    def from_labels(
        cls,
        query_labels: Tensor,
        key_labels: Tensor,
        keep: Tensor,
        compensate: Tensor | None = None,
        *,
        check: bool = True,
    ) -> BlockPlan:
        """Make a plan from block labels `[B, H, N]`, `[B, H, M]`; tokens of a block stay in their
        order."""
        if check:
            _check_labels("query", query_labels, keep, blocks=keep.shape[2])
            _check_labels("key", key_labels, keep, blocks=keep.shape[3])
        query_order, query_sizes = _sort_labels(query_labels, keep.shape[2])
        key_order, key_sizes = _sort_labels(key_labels, keep.shape[3])
        return cls(query_order, key_order, query_sizes, key_sizes, keep, compensate, check)

    @property
    def query_tokens(self) -> int:
        """N, from the order if there is one (a sum of sizes waits for the device)."""
        if self.query_order is not None:
            return self.query_order.shape[2]
        return int(self.query_sizes[0, 0].sum())

    @property
    def key_tokens(self) -> int:
        """M, from the order if there is one."""
        if self.key_order is not None:
            return self.key_order.shape[2]
        return int(self.key_sizes[0, 0].sum())

    def kept_keys(self) -> Tensor:
        """Return how many key tokens each query block sees, `[B, H, Cq]` in float64: no device has
        to multiply integers."""
        kept = self.keep.double() @ self.key_sizes.double().unsqueeze(-1)
        return kept.squeeze(-1)

    def density(self, padding: Tensor | None = None) -> Tensor:
        """Return the fraction of query-key pairs that is computed, `[B, H]`; compensated pairs do
        not count.

        `padding` `[B]` counts padding tokens: never kept as keys and, as queries, part of the text
        block, which sees every real key. They are left out of both sides of the fraction.
        """
        pairs = (self.kept_keys() * self.query_sizes).sum(dim=-1)
        queries, keys = self.query_sizes.sum(dim=-1), self.key_sizes.sum(dim=-1)
        if padding is not None:
            padding = padding.to(keys).unsqueeze(-1)
            queries, keys = queries - padding, keys - padding
            pairs = pairs - padding * keys
        return (pairs / (queries * keys)).float()

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
        return _blocks_of_tokens(self.query_sizes, self.query_order)

    def key_blocks(self) -> Tensor:
        """Return the block of every key token in the original order, `[B, H, M]`."""
        return _blocks_of_tokens(self.key_sizes, self.key_order)

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

    def _check_shapes(self) -> None:
        if self.keep.ndim != 4 or self.keep.dtype != torch.bool:
            raise PlanError(
                f"keep must be bool [B, H, query blocks, key blocks], got {self.keep.dtype} "
                f"{list(self.keep.shape)}"
            )
        batch, heads, query_blocks, key_blocks = self.keep.shape
        expected = {
            "query_sizes": (self.query_sizes, (batch, heads, query_blocks)),
            "key_sizes": (self.key_sizes, (batch, heads, key_blocks)),
        }
        if self.compensate is not None:
            expected["compensate"] = (self.compensate, (batch, heads, key_blocks))
        for name, (tensor, shape) in expected.items():
            if tensor.shape != shape:
                raise PlanError(
                    f"{name} must be {list(shape)} to go with keep, got {list(tensor.shape)}"
                )
        if self.compensate is not None and self.compensate.dtype != torch.bool:
            raise PlanError(f"compensate must be bool, got {self.compensate.dtype}")
        for name in ("query_order", "key_order", "query_sizes", "key_sizes"):
            numbers: Tensor | None = getattr(self, name)
            if numbers is not None and numbers.dtype != torch.int64:
                raise PlanError(f"{name} must be int64, got {numbers.dtype}: use {name}.long()")
        for name, order in (("query_order", self.query_order), ("key_order", self.key_order)):
            if order is not None and (order.ndim != 3 or order.shape[:2] != (batch, heads)):
                raise PlanError(
                    f"{name} must be [{batch}, {heads}, tokens], got {list(order.shape)}"
                )

    def _check_values(self) -> None:
        sides = (
            ("query", self.query_sizes, self.query_order),
            ("key", self.key_sizes, self.key_order),
        )
        for name, sizes, order in sides:
            if bool((sizes < 0).any()):
                raise PlanError(f"{name}_sizes must not be negative, got {int(sizes.min())}")
            totals = sizes.sum(dim=-1)
            tokens = int(totals[0, 0]) if order is None else order.shape[2]
            if not bool((totals == tokens).all()):
                raise PlanError(
                    f"{name}_sizes must sum to {tokens} tokens in every head, got sums "
                    f"{int(totals.min())} to {int(totals.max())}"
                )
            if order is not None and not torch.equal(
                order.sort(dim=-1).values,
                torch.arange(tokens, device=order.device, dtype=order.dtype).expand_as(order),
            ):
                raise PlanError(
                    f"{name}_order is not a permutation of 0 .. {tokens - 1} in every head"
                )
        blind = (self.kept_keys() == 0) & (self.query_sizes > 0)
        if bool(blind.any()):
            batch, head, block = blind.nonzero()[0].tolist()
            raise PlanError(
                f"query block {block} of batch {batch}, head {head} keeps no key token "
                f"({int(blind.sum())} such blocks); every query block with tokens needs at least "
                "one kept key block with tokens"
            )


def _check_labels(name: str, labels: Tensor, keep: Tensor, *, blocks: int) -> None:
    if labels.ndim != 3 or labels.shape[:2] != keep.shape[:2] or labels.is_floating_point():
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


def plan_from_clusters(
    clusters: CoClusters,
    keep: Tensor,
    *,
    compensate: bool = False,
    layout: VideoLayout | None = None,
) -> BlockPlan:
    """Make a plan from clusters of the video tokens; keep is `[B, H, Cq, Ck]`. `layout` adds text
    and padding."""
    marked = clusters.key.sizes > 0 if compensate else None
    plan = BlockPlan.from_labels(
        clusters.query.labels, clusters.key.labels, keep, marked, check=False
    )
    return plan if layout is None else add_text(plan, layout)


def add_text(plan: BlockPlan, layout: VideoLayout) -> BlockPlan:
    """Add text and padding to a plan of the video tokens.

    Text: one query block and one key block, always kept, never compensated. Padding: a key block
    that is never kept; as queries, padding joins the text block.
    """
    if layout.text == 0:
        return plan
    assert plan.query_order is not None and plan.key_order is not None  # made from labels
    batch, heads = plan.keep.shape[:2]
    device = plan.keep.device
    text_places = torch.arange(layout.text, device=device) + layout.text_start
    text_order = text_places.expand(batch, heads, layout.text)
    total = torch.full((batch,), layout.text, device=device)
    valid = total
    if layout.valid_text is not None:  # a count that does not fit must not reach a kernel
        valid = layout.valid_text.to(total).clamp(0, layout.text)
    # Key blocks: video clusters, text, padding. Query blocks: video clusters, text with padding.
    text_sizes = torch.stack((valid, total - valid), dim=-1).unsqueeze(1).expand(batch, heads, 2)
    keep = torch.cat((plan.keep, plan.keep.new_ones(batch, heads, 1, plan.keep.shape[3])), dim=2)
    sees_text = keep.new_ones(batch, heads, keep.shape[2], 1)
    keep = torch.cat((keep, sees_text, ~sees_text), dim=3)
    compensate = plan.compensate
    if compensate is not None:
        compensate = torch.cat((compensate, compensate.new_zeros(batch, heads, 2)), dim=2)
    return BlockPlan(
        torch.cat((plan.query_order + layout.video_start, text_order), dim=2),
        torch.cat((plan.key_order + layout.video_start, text_order), dim=2),
        torch.cat((plan.query_sizes, total.view(batch, 1, 1).expand(batch, heads, 1)), dim=2),
        torch.cat((plan.key_sizes, text_sizes), dim=2),
        keep,
        compensate,
        check=False,
    )


def _sort_labels(labels: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """Return the stable order that brings labels `[B, H, N]` together, and the block sizes `[B, H,
    blocks]`."""
    if labels.device.type == "cpu" and blocks <= 2**15:
        # numpy sorts 16-bit integers digit by digit, which torch does not.
        narrow = labels.to(torch.int16).numpy()
        order = torch.from_numpy(narrow.argsort(axis=-1, kind="stable"))
    else:
        order = labels.sort(dim=-1, stable=True).indices
    sizes = torch.zeros(*labels.shape[:2], blocks, dtype=torch.int64, device=labels.device)
    return order, sizes.scatter_add_(2, labels.long(), torch.ones_like(labels, dtype=torch.int64))


def _blocks_of_tokens(sizes: Tensor, order: Tensor | None) -> Tensor:
    tokens = int(sizes[0, 0].sum())
    ends = sizes.cumsum(dim=-1)
    places = torch.arange(tokens, device=sizes.device).expand(*sizes.shape[:2], tokens)
    blocks = torch.searchsorted(ends, places.contiguous(), right=True)
    return blocks if order is None else torch.empty_like(blocks).scatter_(2, order, blocks)


def _permute(tokens: Tensor, order: Tensor | None) -> Tensor:
    return tokens if order is None else tokens.gather(2, order.unsqueeze(-1).expand_as(tokens))
