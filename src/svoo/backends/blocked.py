"""Block-sparse attention with torch alone, made for the CPU.

For each head, one buffer holds a row (key, value) per token, in block order. A query block copies
the rows that it keeps and attends to them in one fused call.

Terms for left-out blocks are rows in front of the tokens. With mean terms every block has one: its
mean key and value, with bias log(size), or minus infinity where the block is kept. With far terms
only those that enter are there.

Extra memory per thread: the keys and values of one head, and a copy of the rows that one query
block keeps (of the one that keeps most).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo.backends.base import Attention, Workspace
from svoo.core.needs import Needs
from svoo.core.plan import BlockPlan
from svoo.core.terms import FarTerms, compensated
from svoo.core.validate import accumulation_dtype
from svoo.kernels.cpp.threads import find_threads
from svoo.kernels.cpp.work import Work


class BlockedBackend:
    """Runs any plan on any device; fast on the CPU, where threads share out the query blocks."""

    name = "blocked"
    needs = Needs()

    def why_not(self, query: Tensor, plan: BlockPlan) -> str | None:
        """Return why a plan cannot run, or None."""
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
        workspace: Workspace,
    ) -> Attention:
        """Attend block by block, as many heads at a time as there are threads."""
        batch, heads, tokens, _ = query.shape
        output = torch.empty_like(query)
        lse_dtype = accumulation_dtype(query)
        lse = query.new_empty(batch, heads, tokens, dtype=lse_dtype) if return_lse else None
        threads = find_threads(torch.get_num_threads() if query.device.type == "cpu" else 1)
        space = _take_space(key, plan, threads.size, workspace)
        pairs = [(b, h) for b in range(batch) for h in range(heads)]
        prepare = partial(_Head, query, key, value, plan, output, lse)
        attend = partial(_attend_block, scale)
        threads.run(Work(pairs, space.sources, prepare, attend).take_part, space.rooms)
        if query.device.type == "cpu":
            workspace.leave(self.name, space)
        return Attention(output, lse)


def _take_space(key: Tensor, plan: BlockPlan, workers: int, workspace: Workspace) -> _Space:
    """Return memory that fits a call: that of the last call if it has the same shape, else new.

    Memory is kept because new pages cost a tenth of a call. Only the last call's memory is kept,
    and only on the CPU.
    """
    means = 0 if plan.terms is None else plan.keep.shape[3]
    shape = key.shape, means, workers, key.dtype, key.device
    space = workspace.take(BlockedBackend.name)
    if isinstance(space, _Space) and space.shape == shape:
        return space
    del space  # before new memory is taken
    return _Space(key, means, workers, shape)


class _Room:
    """A worker's own memory for the rows `[1, 1, m, 2 D]` that a query block attends to, and for
    their biases `[1, 1, 1, m]`."""

    def __init__(self, source: Tensor, means: int) -> None:
        self.means = means
        self._take(0, source)

    def _take(self, size: int, source: Tensor) -> None:
        self.size = size
        with torch.inference_mode(mode=False):  # memory that later calls in any mode may write to
            self.rows = source.new_empty(1, 1, size, source.shape[3])
            self.bias = source.new_zeros(1, 1, 1, size, dtype=_bias_dtype(source))  # 0 for tokens
        self.mean_bias = self.bias[0, 0, 0, : self.means]

    def fit(self, size: int, source: Tensor) -> None:
        """Make room for `size` rows of the source, if there is less."""
        if self.size < size:
            self._take(0, source)  # lets go of the old memory first
            self._take(size, source)


class _Head:
    """One head: its rows (key, value) in block order, the block means in front of them, and the
    queries, kept rows and output rows of its query blocks.

    Tensors keep the batch and head axes, of size 1, because the fused call needs them.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plan: BlockPlan,
        output: Tensor,
        lse: Tensor | None,
        pair: tuple[int, int],
        source: Tensor,
    ) -> None:
        """Fill `source` `[1, 1, Ck + M, 2 D]` with one head; `pair` is its (batch, head)."""
        self.source = source
        self.tokens = key.shape[2]
        self.means = source.shape[2] - self.tokens
        self.unfinished = 0  # query blocks still to attend
        self.far = _FarRows(plan.terms, plan, pair) if isinstance(plan.terms, FarTerms) else None
        self.front = self.means if self.far is None else 0  # rows that every query block takes
        self.keep, self.sizes = plan.keep[pair], plan.key_sizes[pair]
        # `tolist` waits for the device, but the loop over query blocks needs these numbers.
        self.counts: list[int] = torch.where(self.keep, self.sizes, 0).sum(dim=-1).tolist()
        self.query_sizes: list[int] = plan.query_sizes[pair].tolist()
        terms = [self.front] * len(self.counts) if self.far is None else self.far.counts
        self.most_rows = max(  # a query block that keeps all, without far terms, copies none
            0 if count == self.tokens and not (self.far and more) else more + count
            for more, count in zip(terms, self.counts, strict=True)
        )
        self.kept_rows = self._find_kept_rows()
        if plan.query_order is None:
            rows = torch.arange(sum(self.query_sizes), device=self.sizes.device)
        else:
            rows = plan.query_order[pair]
        self.query_rows: Sequence[Tensor] = rows.split(self.query_sizes)
        here = tuple(slice(index, index + 1) for index in pair)
        self.query, self.output = query[here], output[here]
        self.lse = None if lse is None else lse[here]
        keys, values = source[:, :, self.means :].chunk(2, dim=3)
        for target, tokens in (keys, key[here]), (values, value[here]):
            if plan.key_order is None:
                target.copy_(tokens)
            else:
                torch.index_select(tokens, 2, plan.key_order[pair], out=target)
        if self.means:
            self._average()
        marked = compensated(plan.terms)
        if marked is not None:
            enters = marked[pair] & (self.sizes > 0) & ~self.keep
            logs = self.sizes.to(accumulation_dtype(source)).log()
            biases = torch.where(enters, logs, -torch.inf).to(_bias_dtype(source))
            self.biases: Sequence[Tensor] = biases.unbind()

    def _find_kept_rows(self) -> Sequence[Tensor]:
        """Return for each query block the indices of the rows of `source` that it copies, int32.

        The means count as one more block in front of the others. Every query block keeps it with
        mean terms, none with far terms.
        """
        keep = torch.nn.functional.pad(self.keep, (1, 0), value=self.front > 0)
        sizes = torch.nn.functional.pad(self.sizes, (1, 0), value=self.means).int()
        starts = sizes.cumsum(dim=0, dtype=torch.int32) - sizes
        blocks = keep.nonzero()[:, 1]  # sorted by query block
        lengths = sizes[blocks]
        counts = [self.front + count for count in self.counts]
        total = sum(counts)
        shift = starts[blocks] - (lengths.cumsum(dim=0, dtype=torch.int32) - lengths)
        rows = torch.repeat_interleave(shift, lengths, output_size=total)
        rows += torch.arange(total, dtype=torch.int32, device=rows.device)
        found: Sequence[Tensor] = rows.split(counts)
        return found

    def blocks_by_work(self) -> list[int]:
        """Return the query blocks that have work, most work first, so that all threads finish at
        about the same time."""
        work = [rows * kept for rows, kept in zip(self.query_sizes, self.counts, strict=True)]
        return sorted((b for b, pairs in enumerate(work) if pairs), key=lambda b: -work[b])

    def _average(self) -> None:
        """Write the mean key and value of each block to the first rows of `source`."""
        tokens = self.source[0, 0, self.means :].to(accumulation_dtype(self.source))
        blocks = torch.arange(self.means, device=tokens.device)
        labels = torch.repeat_interleave(blocks, self.sizes, output_size=self.tokens)
        sums = tokens.new_zeros(self.means, tokens.shape[1]).index_add_(0, labels, tokens)
        self.source[0, 0, : self.means] = sums / self.sizes.clamp(min=1).unsqueeze(-1)

    def gather(self, block: int, room: _Room) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the keys and values `[1, 1, m, D]` that a query block attends to, and their bias
        `[1, 1, 1, m]` or None."""
        if self.counts[block] == self.tokens and (self.far is None or not self.far.counts[block]):
            keys, values = self.source[:, :, self.means :].chunk(2, dim=3)
            return keys, values, None
        room.fit(self.most_rows, self.source)
        terms = 0 if self.far is None else self.far.counts[block]
        count = terms + self.front + self.counts[block]
        rows = room.rows[:, :, :count]
        torch.index_select(self.source, 2, self.kept_rows[block], out=rows[:, :, terms:])
        keys, values = rows.chunk(2, dim=3)
        if self.far is not None:
            means = self.source[0, 0, : self.means, : keys.shape[3]]
            bias = self.far.fill(block, means, keys[0, 0], values[0, 0], room.bias[..., :count])
            return keys, values, bias
        if not self.means:
            return keys, values, None
        room.mean_bias.copy_(self.biases[block])
        return keys, values, room.bias[..., :count]


class _FarRows:
    """The far terms of one head: the rows that each query block has in front of its tokens."""

    def __init__(self, terms: FarTerms, plan: BlockPlan, pair: tuple[int, int]) -> None:
        """List, for each query block, the key blocks and the groups that have a term; `pair` is
        (batch, head)."""
        enters = terms.enters(plan.key_sizes)[pair]
        self.blocks = _Listed(enters, terms.bias[pair])
        self.value = terms.value[pair]
        self.counts = self.blocks.counts
        self.groups = None
        if terms.groups is not None:
            bias = terms.groups.bias[pair]
            self.groups = _Listed(bias != -torch.inf, bias)
            self.group_key, self.group_value = terms.groups.key[pair], terms.groups.value[pair]
            both = zip(self.counts, self.groups.counts, strict=True)
            self.counts = [blocks + groups for blocks, groups in both]

    def fill(
        self, block: int, means: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> Tensor:
        """Fill the first rows of keys and values `[m, D]` with the terms of a query block and
        return the bias `[1, 1, 1, m]`; means are `[Ck, D]`."""
        number, columns = self.blocks.counts[block], self.blocks.columns[block]
        keys[:number] = means.index_select(0, columns)
        values[:number] = self.value[block].index_select(0, columns)
        bias[..., :number] = self.blocks.biases[block]
        if self.groups is not None:
            group, here = self.groups.columns[block], slice(number, self.counts[block])
            keys[here] = self.group_key[block].index_select(0, group)
            values[here] = self.group_value[block].index_select(0, group)
            bias[..., here] = self.groups.biases[block]
        bias[..., self.counts[block] :] = 0
        return bias


class _Listed:
    """For each row of marks, bool `[Cq, T]`: how many columns are marked, which, and their biases
    (of bias `[Cq, T]`)."""

    def __init__(self, marks: Tensor, bias: Tensor) -> None:
        self.counts: list[int] = marks.sum(dim=-1).tolist()
        self.columns: Sequence[Tensor] = marks.nonzero()[:, 1].split(self.counts)
        self.biases: Sequence[Tensor] = bias[marks].split(self.counts)


def _bias_dtype(source: Tensor) -> torch.dtype:
    """Return the dtype of biases: the accumulation dtype on the CPU, where the fused call is as
    fast with it, else that of the tokens."""
    return accumulation_dtype(source) if source.device.type == "cpu" else source.dtype


def _attend_block(scale: float, head: _Head, block: int, room: _Room) -> None:
    """Compute the output rows of one query block.

    It makes few torch calls: each of them releases Python's lock, and then has to wait until the
    other workers give it back.
    """
    keys, values, bias = head.gather(block, room)
    rows = head.query_rows[block]
    queries = head.query.index_select(2, rows)
    part = _attend(queries, keys, values, bias, scale, return_lse=head.lse is not None)
    head.output.index_copy_(2, rows, part.output)
    if head.lse is not None and part.lse is not None:
        head.lse.index_copy_(2, rows, part.lse)


class _Space:
    """The memory of a call: a buffer for one head, and a `_Room`, for each worker."""

    def __init__(self, key: Tensor, means: int, workers: int, shape: object) -> None:
        self.shape = shape
        pairs = key.shape[0] * key.shape[1]
        rows, size = means + key.shape[2], 2 * key.shape[3]
        with torch.inference_mode(mode=False):  # memory that later calls in any mode may write to
            self.sources = [key.new_empty(1, 1, rows, size) for _ in range(min(workers, pairs))]
        self.rooms = [_Room(self.sources[0], means) for _ in range(workers)]

    @property
    def nbytes(self) -> int:
        rooms = sum(room.rows.nbytes + room.bias.nbytes for room in self.rooms)
        return rooms + sum(source.nbytes for source in self.sources)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    scale: float,
    *,
    return_lse: bool,
) -> Attention:
    """Attend from `[1, 1, n, D]` to `[1, 1, m, D]` with bias `[1, 1, 1, m]`, or None."""
    if not return_lse:
        output = scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)
        return Attention(output, None)
    # torch's public fused call returns no log-sum-exp.
    dtype = accumulation_dtype(query)
    logits = query.to(dtype) @ key.to(dtype).mT * scale
    if bias is not None:
        logits += bias
    lse = logits.logsumexp(dim=-1)
    weights = (logits - lse.unsqueeze(-1)).exp_()
    return Attention((weights @ value.to(dtype)).to(query.dtype), lse)
