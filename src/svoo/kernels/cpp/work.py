"""Heads and their query blocks as pieces of work that threads come for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from threading import Condition
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

Room = TypeVar("Room")


class Head(Protocol):
    """A prepared head: the memory it stands in, and its query blocks still to attend."""

    source: Tensor
    unfinished: int

    def blocks_by_work(self) -> list[int]:
        """Return the query blocks, most work first."""


class Work(Generic[Room]):
    """What is left to do in a call: heads to prepare, and query blocks of those prepared.

    Workers come for the next piece whenever they are free, so that none waits for a slower one
    while there is anything to do. A head is prepared as soon as there is room for it.
    """

    def __init__(
        self,
        pairs: Iterable[tuple[int, int]],
        sources: Iterable[Tensor],
        prepare: Callable[[tuple[int, int], Tensor], Head],
        attend: Callable[[Any, int, Room], None],
    ) -> None:
        """Begin with all heads, as (batch, head) pairs, to be prepared in `sources`."""
        self.prepare, self.attend = prepare, attend
        self._pairs, self._free = deque(pairs), list(sources)
        self._blocks: deque[tuple[Head, int]] = deque()
        self._being_prepared = 0
        self._failed = False
        self._changed = Condition()

    def take_part(self, room: Room) -> None:
        """Work until nothing is left to take."""
        try:
            while (piece := self._next()) is not None:
                piece(room)
        except BaseException:
            with self._changed:
                self._failed = True
                self._changed.notify_all()
            raise

    def _next(self) -> Callable[[Room], None] | None:
        """Return the next piece of work, once there is one; None at the end."""
        with self._changed:
            while not self._failed:
                if self._pairs and self._free:
                    self._being_prepared += 1
                    return partial(self._prepare, self._pairs.popleft(), self._free.pop())
                if self._blocks:
                    return partial(self._attend, *self._blocks.popleft())
                if not self._pairs and not self._being_prepared:
                    return None
                self._changed.wait()
        return None

    def _prepare(self, pair: tuple[int, int], source: Tensor, _room: Room) -> None:
        head = self.prepare(pair, source)
        blocks = head.blocks_by_work()
        with self._changed:
            self._being_prepared -= 1
            self._blocks.extend((head, block) for block in blocks)
            self._leave(head, len(blocks))

    def _attend(self, head: Head, block: int, room: Room) -> None:
        self.attend(head, block, room)
        with self._changed:
            self._leave(head, head.unfinished - 1)

    def _leave(self, head: Head, unfinished: int) -> None:
        """Note how many of the head's blocks are left; without any its memory is free
        for another."""
        head.unfinished = unfinished
        if not unfinished:
            self._free.append(head.source)
        self._changed.notify_all()
