"""Block-sparse attention with torch alone, made for the CPU.

A head's keys and values stand side by side in one buffer in block order. A query block copies the
rows that it keeps and attends to them in one fused call. The means of compensated blocks are more
keys in front of them, whose bias is the logarithm of the block's size, or minus infinity for a
block that is kept. Extra memory: for every thread one head's keys and values, twice.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
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
        space = crew.take_space(key, plan)
        with crew.working():
            attend = partial(_attend_block, query, output, lse, scale)
            for first in range(0, len(pairs), len(space.heads)):
                group = pairs[first : first + len(space.heads)]
                heads_used = space.heads[: len(group)]
                moves = zip(heads_used, group, strict=True)
                stages: list[list[Task]] = [
                    [partial(head.move_to, plan, *pair) for head, pair in moves],
                    [head.fill(side, key, value) for head in heads_used for side in (0, 1)],
                    [head.average for head in heads_used] if plan.compensate is not None else [],
                ]
                for tasks in stages:
                    crew.share(tasks, space.rooms)
                blocks = [(head, block) for head in heads_used for block in head.blocks_by_work()]
                crew.share([partial(attend, head, block) for head, block in blocks], space.rooms)
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


class _Room:
    """A worker's own room for the rows that a query block attends to, and their biases."""

    def __init__(self, source: Tensor) -> None:
        self.rows = torch.empty_like(source)
        self.bias = source.new_zeros(len(source))  # 0 for tokens; the means in front have theirs


Task = Callable[[_Room], None]


class _Head:
    """One head's keys and values side by side in block order, the block means in front of them."""

    def __init__(self, key: Tensor, means: int) -> None:
        self.tokens, self.size = key.shape[2], key.shape[3]
        self.means = means
        self.source = key.new_empty(means + self.tokens, 2 * self.size)

    def move_to(self, plan: BlockPlan, b: int, h: int, _room: _Room) -> None:
        """Stand for another head; its tokens are filled in afterwards."""
        self.place = (b, h)
        self.keep, self.sizes = plan.keep[b, h], plan.key_sizes[b, h]
        self.order = None if plan.key_order is None else plan.key_order[b, h]
        # These wait for the device: the sizes of the blocks steer the loop.
        self.counts: list[int] = (self.keep.long() @ self.sizes).tolist()
        query_sizes: list[int] = plan.query_sizes[b, h].tolist()
        self.kept_rows = self._find_kept_rows()
        if plan.query_order is None:
            places = torch.arange(sum(query_sizes), device=self.sizes.device)
        else:
            places = plan.query_order[b, h]
        self.query_rows: Sequence[Tensor] = places.split(query_sizes)
        if plan.compensate is not None:
            enters = plan.compensate[b, h] & (self.sizes > 0) & ~self.keep
            logs = self.sizes.to(accumulation_dtype(self.source)).log()
            self.biases = torch.where(enters, logs, -torch.inf).to(self.source.dtype)

    def _find_kept_rows(self) -> Sequence[Tensor]:
        """Return for every query block the rows of `source` that it attends to, int32.

        The means are one more block, in front of all and always kept.
        """
        keep = torch.nn.functional.pad(self.keep, (1, 0), value=True)
        sizes = torch.nn.functional.pad(self.sizes, (1, 0), value=self.means).int()
        starts = sizes.cumsum(dim=0, dtype=torch.int32) - sizes
        blocks = keep.nonzero()[:, 1]  # query block by query block
        lengths = sizes[blocks]
        counts = [self.means + count for count in self.counts]
        total = sum(counts)
        shift = starts[blocks] - (lengths.cumsum(dim=0, dtype=torch.int32) - lengths)
        rows = torch.repeat_interleave(shift, lengths, output_size=total)
        rows += torch.arange(total, dtype=torch.int32, device=rows.device)
        found: Sequence[Tensor] = rows.split(counts)
        return found

    def blocks_by_work(self) -> list[int]:
        """Return the query blocks with tokens, most work first, so that threads end together."""
        sizes = [len(rows) for rows in self.query_rows]
        work = [rows * kept for rows, kept in zip(sizes, self.counts, strict=True)]
        return sorted((b for b, pairs in enumerate(work) if pairs), key=lambda b: -work[b])

    def fill(self, side: int, key: Tensor, value: Tensor) -> Task:
        """Return the task that copies this head's keys (side 0) or values (side 1) in block
        order."""
        target = self.source[self.means :, side * self.size : (side + 1) * self.size]

        def fill(_room: _Room) -> None:
            tokens = (key, value)[side][self.place]
            if self.order is None:
                target.copy_(tokens)
            else:
                torch.index_select(tokens, 0, self.order, out=target)

        return fill

    def average(self, _room: _Room) -> None:
        """Put the block means in front of the keys and values."""
        tokens = self.source[self.means :].to(accumulation_dtype(self.source))
        blocks = torch.arange(self.means, device=tokens.device)
        labels = torch.repeat_interleave(blocks, self.sizes, output_size=self.tokens)
        sums = tokens.new_zeros(self.means, tokens.shape[1]).index_add_(0, labels, tokens)
        self.source[: self.means] = sums / self.sizes.clamp(min=1).unsqueeze(-1)

    def gather(self, block: int, room: _Room) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the keys `[m, D]`, values `[m, D]` and bias `[m]` (or None) of one query
        block."""
        bias = None
        if self.counts[block] == self.tokens:
            rows = self.source[self.means :]
        else:
            kept = self.kept_rows[block]
            rows = room.rows[: len(kept)]
            torch.index_select(self.source, 0, kept, out=rows)
            if self.means:
                bias = room.bias[: len(kept)]
                bias[: self.means] = self.biases[block]
        return rows[:, : self.size], rows[:, self.size :], bias


def _attend_block(
    query: Tensor,
    output: Tensor,
    lse: Tensor | None,
    scale: float,
    head: _Head,
    block: int,
    room: _Room,
) -> None:
    """Compute the output rows of one query block.

    Few torch calls, because each hands Python's lock to another worker and has to wait for it.
    """
    keys, values, bias = head.gather(block, room)
    rows = head.query_rows[block]
    queries = query[head.place].index_select(0, rows)
    part = _attend(queries, keys, values, bias, scale, return_lse=lse is not None)
    output[head.place].index_copy_(0, rows, part.output)
    if lse is not None and part.lse is not None:
        lse[head.place].index_copy_(0, rows, part.lse)


class _Space:
    """Memory for a call: as many heads as there are workers, and a room for each worker."""

    def __init__(self, key: Tensor, means: int, workers: int, shape: object) -> None:
        self.shape = shape
        pairs = key.shape[0] * key.shape[1]
        self.heads = [_Head(key, means) for _ in range(min(workers, pairs))]
        self.rooms = [_Room(self.heads[0].source) for _ in range(workers)]


class _Crew:
    """Workers that take tasks in turn, each running torch on one thread of its own.

    A fused call on some 256 queries is too short for threads to share: with a worker a thread the
    whole takes 0.8 of the time. They and the memory of the last call are kept, because new pages
    cost a tenth of a call.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._spare: list[_Space] = []
        self.pool = ThreadPoolExecutor(size - 1, "svoo-blocked") if size > 1 else None
        if self.pool is not None:
            together = Barrier(size - 1)

            def begin(_worker: int) -> None:
                torch.set_num_threads(1)
                together.wait()  # so that no worker begins twice

            list(self.pool.map(begin, range(size - 1)))
            # The workers' setting became the default of threads yet to come: put it back.
            torch.set_num_threads(size)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Let the caller be one of the workers, who run torch on one thread."""
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(self.size)

    def take_space(self, key: Tensor, plan: BlockPlan) -> _Space:
        """Return memory that fits a call: what the last one left, or new."""
        means = 0 if plan.compensate is None else plan.keep.shape[3]
        shape = key.shape, means, key.dtype, key.device
        try:
            space = self._spare.pop()
        except IndexError:  # the first call, or another one runs at the same time
            space = None
        if space is None or space.shape != shape:
            space = _Space(key, means, self.size, shape)
        return space

    def give_back(self, space: _Space) -> None:
        """Keep the memory of a call for the next; only the last call's, and only on the CPU."""
        if space.rooms[0].rows.device.type == "cpu":
            self._spare[:] = [space]

    def share(self, tasks: Sequence[Task], rooms: list[_Room]) -> None:
        """Run all tasks and wait for them; an error in one is raised here."""
        waiting = deque(tasks)
        inference = torch.is_inference_mode_enabled()

        def work(room: _Room) -> None:
            # Both modes belong to a thread, and a new thread has neither.
            with torch.inference_mode(inference), torch.no_grad():
                while waiting:
                    try:
                        task = waiting.popleft()
                    except IndexError:  # another worker took the last one
                        return
                    task(room)

        others = [self.pool.submit(work, room) for room in rooms[1:]] if self.pool else []
        try:
            work(rooms[0])
        finally:
            wait(others)  # whatever happens, nobody works on this call's tensors after it
        for other in others:
            other.result()


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
