"""Block-sparse attention with torch alone, made for the CPU.

A head's keys and values stand side by side in one buffer in block order. A query block copies the
rows that it keeps and attends to them in one fused call. The means of compensated blocks are more
keys in front of them, whose bias is the logarithm of the block's size, or minus infinity for a
block that is kept. Extra memory: for every thread one head's keys and values, and of them once
more as many as the query block that keeps most of them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from threading import Barrier, Condition, Lock

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

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the buffers that the last calls left."""
        return sum(crew.spare_bytes for crew in self._crews.values())

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
        space = crew.take_space(key, plan)
        places = [(b, h) for b in range(batch) for h in range(heads)]
        prepare = partial(_Head, key, value, plan)
        attend = partial(_attend_block, query, output, lse, scale)
        crew.run(_Work(places, space.sources, prepare, attend), space.rooms)
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
        self._take(0, source)

    def _take(self, rows: int, source: Tensor) -> None:
        with torch.inference_mode(mode=False):  # memory that later calls in any mode may write to
            self.rows = source.new_empty(rows, source.shape[1])
            self.bias = source.new_zeros(rows)  # 0 for tokens; the means in front have theirs

    def fit(self, head: _Head) -> None:
        """Grow, if need be, to what any of a head's query blocks copies."""
        if len(self.rows) < head.most_rows:
            self._take(0, head.source)  # lets go of the old memory first
            self._take(head.most_rows, head.source)


class _Head:
    """One head's keys and values side by side in block order, the block means in front of them."""

    def __init__(
        self, key: Tensor, value: Tensor, plan: BlockPlan, place: tuple[int, int], source: Tensor
    ) -> None:
        """Fill `source` with the head at `place` (batch, head)."""
        self.place, self.source = place, source
        self.tokens, self.size = key.shape[2], key.shape[3]
        self.means = len(source) - self.tokens
        self.unfinished = 0  # query blocks still to attend
        self.keep, self.sizes = plan.keep[place], plan.key_sizes[place]
        # These wait for the device: the sizes of the blocks steer the loop.
        self.counts: list[int] = (self.keep.long() @ self.sizes).tolist()
        query_sizes: list[int] = plan.query_sizes[place].tolist()
        copied = (self.means + count for count in self.counts if count < self.tokens)
        self.most_rows = max(copied, default=0)
        self.kept_rows = self._find_kept_rows()
        if plan.query_order is None:
            rows = torch.arange(sum(query_sizes), device=self.sizes.device)
        else:
            rows = plan.query_order[place]
        self.query_rows: Sequence[Tensor] = rows.split(query_sizes)
        keys, values = self.source[self.means :].split(self.size, dim=1)
        for target, tokens in (keys, key[place]), (values, value[place]):
            if plan.key_order is None:
                target.copy_(tokens)
            else:
                torch.index_select(tokens, 0, plan.key_order[place], out=target)
        if plan.compensate is not None:
            self._average()
            enters = plan.compensate[place] & (self.sizes > 0) & ~self.keep
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

    def _average(self) -> None:
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
            room.fit(self)
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
        rows, size = means + key.shape[2], 2 * key.shape[3]
        with torch.inference_mode(mode=False):  # memory that later calls in any mode may write to
            self.sources = [key.new_empty(rows, size) for _ in range(min(workers, pairs))]
        self.rooms = [_Room(self.sources[0]) for _ in range(workers)]

    @property
    def nbytes(self) -> int:
        rooms = sum(room.rows.nbytes + room.bias.nbytes for room in self.rooms)
        return rooms + sum(source.nbytes for source in self.sources)


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

    @property
    def spare_bytes(self) -> int:
        return sum(space.nbytes for space in self._spare)

    def run(self, work: _Work, rooms: list[_Room]) -> None:
        """Do all of the work, the caller as one of the workers; an error in one is raised here."""
        inference = torch.is_inference_mode_enabled()

        def take_part(room: _Room) -> None:
            # Both modes belong to a thread, and a new thread has neither.
            with torch.inference_mode(inference), torch.no_grad():
                work.take_part(room)

        others = [self.pool.submit(take_part, room) for room in rooms[1:]] if self.pool else []
        torch.set_num_threads(1)
        try:
            take_part(rooms[0])
        finally:
            wait(others)  # whatever happens, nobody works on this call's tensors after it
            torch.set_num_threads(self.size)
        for other in others:
            other.result()


class _Work:
    """What is left to do in a call: heads to prepare, and query blocks of those prepared.

    Workers come for the next piece whenever they are free, so that none waits for a slower one
    while there is anything to do. A head is prepared as soon as there is room for it.
    """

    def __init__(
        self,
        places: Iterable[tuple[int, int]],
        sources: Iterable[Tensor],
        prepare: Callable[[tuple[int, int], Tensor], _Head],
        attend: Callable[[_Head, int, _Room], None],
    ) -> None:
        self.prepare, self.attend = prepare, attend
        self._places, self._free = deque(places), list(sources)
        self._blocks: deque[tuple[_Head, int]] = deque()
        self._being_prepared = 0
        self._failed = False
        self._changed = Condition()

    def take_part(self, room: _Room) -> None:
        """Work until nothing is left to take."""
        try:
            while (piece := self._next()) is not None:
                piece(room)
        except BaseException:
            with self._changed:
                self._failed = True
                self._changed.notify_all()
            raise

    def _next(self) -> Callable[[_Room], None] | None:
        """Return the next piece of work, once there is one; None at the end."""
        with self._changed:
            while not self._failed:
                if self._places and self._free:
                    self._being_prepared += 1
                    return partial(self._prepare, self._places.popleft(), self._free.pop())
                if self._blocks:
                    return partial(self._attend, *self._blocks.popleft())
                if not self._places and not self._being_prepared:
                    return None
                self._changed.wait()
        return None

    def _prepare(self, place: tuple[int, int], source: Tensor, _room: _Room) -> None:
        head = self.prepare(place, source)
        blocks = head.blocks_by_work()
        with self._changed:
            self._being_prepared -= 1
            self._blocks.extend((head, block) for block in blocks)
            self._leave(head, len(blocks))

    def _attend(self, head: _Head, block: int, room: _Room) -> None:
        self.attend(head, block, room)
        with self._changed:
            self._leave(head, head.unfinished - 1)

    def _leave(self, head: _Head, unfinished: int) -> None:
        """Note how many of the head's blocks are left; without any its memory is free
        for another."""
        head.unfinished = unfinished
        if not unfinished:
            self._free.append(head.source)
        self._changed.notify_all()


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
