"""Block-sparse attention with torch alone, made for the CPU.

A head's keys and values stand side by side in one buffer in block order. A query block copies the
rows that it keeps and attends to them in one fused call. The means of compensated blocks are more
keys behind them, whose bias is the logarithm of the block's size, or minus infinity for a block
that is kept. Extra memory: for every thread one head's keys and values, twice.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, Lock
from typing import Self

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
        places = [_Head(key, plan) for _ in range(min(crew.size, len(pairs)))]
        rooms = [torch.empty_like(places[0].source) for _ in range(crew.size)]

        def attend(head: _Head, block: int, room: Tensor) -> None:
            rows = head.query_rows[block]
            keys, values, bias = head.gather(block, room)
            part = _attend(
                query[head.place].index_select(0, rows), keys, values, bias, scale, return_lse
            )
            output[head.place].index_copy_(0, rows, part.output)
            if lse is not None and part.lse is not None:
                lse[head.place].index_copy_(0, rows, part.lse)

        for first in range(0, len(pairs), len(places)):
            group = pairs[first : first + len(places)]
            used = [head.move_to(*pair) for head, pair in zip(places, group, strict=False)]
            crew.share((_fill(head, part, key, value) for head in used for part in (0, 1)), rooms)
            if plan.compensate is not None:
                crew.share((_average(head) for head in used), rooms)
            blocks = [(head, block) for head in used for block in head.blocks_by_work()]
            crew.share((partial(attend, head, block) for head, block in blocks), rooms)
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


class _Head:
    """One head's keys and values in block order with the block means behind them."""

    def __init__(self, key: Tensor, plan: BlockPlan) -> None:
        self.plan = plan
        self.tokens, self.size = key.shape[2], key.shape[3]
        self.means = 0 if plan.compensate is None else plan.keep.shape[3]
        self.source = key.new_empty(self.tokens + self.means, 2 * self.size)
        self.places = torch.arange(self.tokens, device=key.device)

    def move_to(self, b: int, h: int) -> Self:
        """Stand for another head; its keys and values are filled in afterwards."""
        plan, self.place = self.plan, (b, h)
        self.keep, self.sizes = plan.keep[b, h], plan.key_sizes[b, h]
        self.starts = self.sizes.cumsum(dim=0) - self.sizes
        self.order = self.places if plan.key_order is None else plan.key_order[b, h]
        # These wait for the device: the sizes of the blocks steer the loop.
        self.counts: list[int] = (self.keep.long() @ self.sizes).tolist()
        self.query_sizes: list[int] = plan.query_sizes[b, h].tolist()
        rows = plan.query_order[b, h] if plan.query_order is not None else None
        if rows is None:
            rows = torch.arange(sum(self.query_sizes), device=self.places.device)
        self.query_rows = rows.split(self.query_sizes)
        if plan.compensate is not None:
            enters = plan.compensate[b, h] & (self.sizes > 0)
            logs = self.sizes.to(accumulation_dtype(self.source)).log()
            self.log_sizes = torch.where(enters, logs, -torch.inf).to(self.source.dtype)
        return self

    def blocks_by_work(self) -> list[int]:
        """Return the query blocks with tokens, most work first, so that threads end together."""
        work = [rows * kept for rows, kept in zip(self.query_sizes, self.counts, strict=True)]
        return sorted((b for b, pairs in enumerate(work) if pairs), key=lambda b: -work[b])

    def gather(self, block: int, room: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the keys `[m, D]`, values `[m, D]`, bias `[m]` (or None) of one query block."""
        count = self.counts[block]
        if count == self.tokens:
            rows = self.source[:count]
            return rows[:, : self.size], rows[:, self.size :], None
        kept = self.keep[block].nonzero().squeeze(-1)
        sizes = self.sizes[kept]
        shift = self.starts[kept] - (sizes.cumsum(dim=0) - sizes)
        places = torch.repeat_interleave(shift, sizes, output_size=count) + self.places[:count]
        rows = room[: count + self.means]
        torch.index_select(self.source, 0, places, out=rows[:count])
        bias = None
        if self.means:
            rows[count:] = self.source[self.tokens :]
            bias = rows.new_zeros(count + self.means)
            bias[count:] = self.log_sizes.masked_fill(self.keep[block], -torch.inf)
        return rows[:, : self.size], rows[:, self.size :], bias


Task = Callable[[Tensor], None]
"""A piece of work, given the worker's own room for gathered rows."""


def _fill(head: _Head, part: int, key: Tensor, value: Tensor) -> Task:
    """Return the task that copies one head's keys (part 0) or values (part 1) in block order."""

    def fill(_room: Tensor) -> None:
        tokens = (key, value)[part][head.place].index_select(0, head.order)
        head.source[: head.tokens, part * head.size : (part + 1) * head.size] = tokens

    return fill


def _average(head: _Head) -> Task:
    """Return the task that puts the block means of one head behind its keys and values."""

    def average(_room: Tensor) -> None:
        tokens = head.source[: head.tokens].to(accumulation_dtype(head.source))
        blocks = torch.arange(head.means, device=head.places.device)
        labels = torch.repeat_interleave(blocks, head.sizes, output_size=head.tokens)
        sums = tokens.new_zeros(head.means, tokens.shape[1]).index_add_(0, labels, tokens)
        head.source[head.tokens :] = sums / head.sizes.clamp(min=1).unsqueeze(-1)

    return average


class _Crew:
    """Workers that take tasks in turn, each running torch on one thread of its own.

    A fused call on 256 queries is too short for two threads to share (0.6 of the ideal speed);
    two workers with a call each reach 0.9. They are kept, because a thread's first products are
    slow: they cost 5 ms of a 16 ms call when new threads were started for each.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.pool = ThreadPoolExecutor(size, "svoo-blocked") if size > 1 else None
        if self.pool is not None:
            together = Barrier(size)

            def begin(_worker: int) -> None:
                torch.set_num_threads(1)
                together.wait()  # so that no worker begins twice

            list(self.pool.map(begin, range(size)))
            # The workers' setting became the default of threads yet to come: put it back.
            torch.set_num_threads(size)

    def share(self, tasks: Iterable[Task], rooms: list[Tensor]) -> None:
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
    return_lse: bool,  # noqa: FBT001 (handed through)
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
