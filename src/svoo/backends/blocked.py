"""Block-sparse attention with torch alone, made for the CPU.

A head's keys and values stand side by side in one buffer in block order. A query block copies the
rows that it keeps and attends to them in one fused call. The means of compensated blocks are more
keys behind them, whose bias is the logarithm of the block's size, or minus infinity for a block
that is kept. Extra memory: for every thread one head's keys and values, twice.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, Lock

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo.backends.base import Attention
from svoo.checks import accumulation_dtype
from svoo.plan import BlockPlan


class BlockedBackend:
    """Runs any plan on any device; fast on the CPU, where threads share out the query blocks."""

    name = "blocked"

    def __init__(self) -> None:
        """Start no threads yet."""
        self._lock = Lock()
        self._crews: dict[tuple[int, int], _Crew] = {}

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
        """Attend block by block, as many heads at a time as there are threads."""
        batch, heads, tokens, _ = query.shape
        output = torch.empty_like(query)
        lse_dtype = accumulation_dtype(query)
        lse = query.new_empty(batch, heads, tokens, dtype=lse_dtype) if return_lse else None
        crew = self._crew(query)
        pairs = [(b, h) for b in range(batch) for h in range(heads)]
        space = crew.take_space(query, key, plan)
        places, rooms = space.heads, space.rooms
        for first in range(0, len(pairs), len(places)):
            group = pairs[first : first + len(places)]
            used = places[: len(group)]
            moves = [
                partial(head.move_to, plan, *pair) for head, pair in zip(used, group, strict=True)
            ]
            crew.share(moves, rooms)
            crew.share([task for head in used for task in head.fills(query, key, value)], rooms)
            if plan.compensate is not None:
                crew.share([head.average for head in used], rooms)
            crew.share(
                [
                    partial(head.attend, block, scale=scale, return_lse=return_lse)
                    for head in used
                    for block in head.blocks_by_work()
                ],
                rooms,
            )
            crew.share([partial(head.put_back, output, lse) for head in used], rooms)
        crew.give_back(space)
        return Attention(output, lse)

    def _crew(self, query: Tensor) -> _Crew:
        """Return the workers for a call: one a CPU thread, kept from call to call."""
        size = torch.get_num_threads() if query.device.type == "cpu" else 1
        with self._lock:
            # Threads do not survive a fork, hence the process in the key.
            key = os.getpid(), size
            if key not in self._crews:
                self._crews[key] = _Crew(size)
            return self._crews[key]


Task = Callable[[Tensor], None]
"""A piece of work, given the worker's own room for gathered rows."""


class _Head:
    """One head in block order: keys and values with the block means behind them, and queries."""

    def __init__(self, query: Tensor, key: Tensor, means: int) -> None:
        self.tokens, self.size = key.shape[2], key.shape[3]
        self.means = means
        self.source = key.new_empty(self.tokens + self.means, 2 * self.size)
        self.queries = query.new_empty(query.shape[2:])
        self.lse = query.new_empty(query.shape[2], dtype=accumulation_dtype(query))
        self.rows = torch.arange(self.tokens, device=key.device, dtype=torch.int32)

    def move_to(self, plan: BlockPlan, b: int, h: int, _room: Tensor) -> None:
        """Stand for another head; its tokens are filled in afterwards."""
        self.place = (b, h)
        self.keep, self.sizes = plan.keep[b, h], plan.key_sizes[b, h]
        self.key_order = None if plan.key_order is None else plan.key_order[b, h]
        self.query_order = None if plan.query_order is None else plan.query_order[b, h]
        # These wait for the device: the sizes of the blocks steer the loop.
        self.counts: list[int] = (self.keep.long() @ self.sizes).tolist()
        query_sizes: list[int] = plan.query_sizes[b, h].tolist()
        self.kept_rows = self._find_kept_rows()
        self.query_blocks: Sequence[Tensor] = self.queries.split(query_sizes)
        self.lse_blocks: Sequence[Tensor] = self.lse.split(query_sizes)
        if plan.compensate is not None:
            enters = plan.compensate[b, h] & (self.sizes > 0)
            logs = self.sizes.to(accumulation_dtype(self.source)).log()
            self.log_sizes = torch.where(enters, logs, -torch.inf).to(self.source.dtype)

    def _find_kept_rows(self) -> Sequence[Tensor]:
        """Return for every query block the rows of `source` that it keeps, int32."""
        blocks = self.keep.nonzero()[:, 1]  # kept key blocks, query block by query block
        sizes = self.sizes[blocks].int()
        starts = (self.sizes.cumsum(dim=0) - self.sizes).int()[blocks]
        total = sum(self.counts)
        ends = sizes.cumsum(dim=0, dtype=torch.int32)
        rows = torch.repeat_interleave(starts - ends + sizes, sizes, output_size=total)
        rows += torch.arange(total, dtype=torch.int32, device=rows.device)
        found: Sequence[Tensor] = rows.split(self.counts)
        return found

    def blocks_by_work(self) -> list[int]:
        """Return the query blocks with tokens, most work first, so that threads end together."""
        sizes = [len(block) for block in self.query_blocks]
        work = [rows * kept for rows, kept in zip(sizes, self.counts, strict=True)]
        return sorted((b for b, pairs in enumerate(work) if pairs), key=lambda b: -work[b])

    def fills(self, query: Tensor, key: Tensor, value: Tensor) -> list[Task]:
        """Return tasks that copy this head's keys, values and queries in block order."""
        keys, values = self.source[: self.tokens].split(self.size, dim=1)
        sides = (
            (keys, key, self.key_order),
            (values, value, self.key_order),
            (self.queries, query, self.query_order),
        )

        def fill(target: Tensor, tokens: Tensor, order: Tensor | None, _room: Tensor) -> None:
            if order is None:
                target.copy_(tokens[self.place])
            else:
                torch.index_select(tokens[self.place], 0, order, out=target)

        return [partial(fill, *side) for side in sides]

    def average(self, _room: Tensor) -> None:
        """Put the block means behind the keys and values."""
        tokens = self.source[: self.tokens].to(accumulation_dtype(self.source))
        blocks = torch.arange(self.means, device=self.rows.device)
        labels = torch.repeat_interleave(blocks, self.sizes, output_size=self.tokens)
        sums = tokens.new_zeros(self.means, tokens.shape[1]).index_add_(0, labels, tokens)
        self.source[self.tokens :] = sums / self.sizes.clamp(min=1).unsqueeze(-1)

    def attend(self, block: int, room: Tensor, *, scale: float, return_lse: bool) -> None:
        """Replace the queries of one block by what they attend to.

        Few calls, because each hands Python's lock to another worker and has to wait for it.
        """
        count = self.counts[block]
        bias = None
        if count == self.tokens:
            rows = self.source[:count]
        else:
            rows = room[: count + self.means]
            torch.index_select(self.source, 0, self.kept_rows[block], out=rows[:count])
            if self.means:
                rows[count:] = self.source[self.tokens :]
                bias = rows.new_zeros(count + self.means)
                bias[count:] = self.log_sizes.masked_fill(self.keep[block], -torch.inf)
        queries = self.query_blocks[block]
        keys, values = rows[:, : self.size], rows[:, self.size :]
        part = _attend(queries, keys, values, bias, scale, return_lse=return_lse)
        queries.copy_(part.output)
        if part.lse is not None:
            self.lse_blocks[block].copy_(part.lse)

    def put_back(self, output: Tensor, lse: Tensor | None, _room: Tensor) -> None:
        """Write the results in the original token order."""
        results = (
            [(output, self.queries)] if lse is None else [(output, self.queries), (lse, self.lse)]
        )
        for target, source in results:
            if self.query_order is None:
                target[self.place].copy_(source)
            else:
                target[self.place].index_copy_(0, self.query_order, source)


class _Space:
    """Memory for a call: places for as many heads as there are workers, and a room for each
    worker."""

    def __init__(
        self, query: Tensor, key: Tensor, means: int, workers: int, shape: object
    ) -> None:
        self.shape = shape
        pairs = query.shape[0] * query.shape[1]
        self.heads = [_Head(query, key, means) for _ in range(min(workers, pairs))]
        self.rooms = [torch.empty_like(self.heads[0].source) for _ in range(workers)]


class _Crew:
    """Workers that take tasks in turn, each running torch on one thread of its own.

    A fused call on some 256 queries is too short for threads to share: with a worker a thread the
    whole takes 0.8 of the time. They and the memory of the last call are kept, because new pages
    cost a tenth of a call.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._spare: list[_Space] = []
        self.pool = ThreadPoolExecutor(size, "svoo-blocked") if size > 1 else None
        if self.pool is not None:
            together = Barrier(size)

            def begin(_worker: int) -> None:
                torch.set_num_threads(1)
                together.wait()  # so that no worker begins twice

            list(self.pool.map(begin, range(size)))
            # The workers' setting became the default of threads yet to come: put it back.
            torch.set_num_threads(size)

    def take_space(self, query: Tensor, key: Tensor, plan: BlockPlan) -> _Space:
        """Return memory that fits a call: what the last one left, or new."""
        means = 0 if plan.compensate is None else plan.keep.shape[3]
        pairs = min(self.size, query.shape[0] * query.shape[1])
        shape = pairs, query.shape[2:], key.shape[2:], means, query.dtype, query.device
        try:
            space = self._spare.pop()
        except IndexError:  # the first call, or another one runs at the same time
            space = None
        if space is None or space.shape != shape:
            space = _Space(query, key, means, self.size, shape)
        return space

    def give_back(self, space: _Space) -> None:
        """Keep the memory of a call for the next; only the last call's, and only on the CPU."""
        if space.rooms[0].device.type == "cpu":
            self._spare[:] = [space]

    def share(self, tasks: Sequence[Task], rooms: list[Tensor]) -> None:
        """Run all tasks and wait for them; an error in one is raised here."""
        waiting = deque(tasks)
        inference = torch.is_inference_mode_enabled()

        def work(room: Tensor) -> None:
            # Both modes belong to a thread, and a new thread has neither.
            with torch.inference_mode(inference), torch.no_grad():
                while waiting:
                    try:
                        task = waiting.popleft()
                    except IndexError:  # another worker took the last one
                        return
                    task(room)

        if self.pool is None:
            work(rooms[0])
        else:
            list(self.pool.map(work, rooms))


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
