from threading import Lock

import pytest
import torch
from torch import Tensor

from svoo.kernels.cpp.threads import Threads
from svoo.kernels.cpp.work import Work


class Head:
    def __init__(self, place: tuple[int, int], source: Tensor) -> None:
        self.place, self.source, self.unfinished = place, source, 0

    def blocks_by_work(self) -> list[int]:
        return list(range(self.place[1]))  # the first head has none


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_block_is_done_once_and_memory_serves_one_head_at_a_time(workers: int) -> None:
    done: list[tuple[tuple[int, int], int, int]] = []
    users: dict[int, tuple[int, int]] = {}
    lock = Lock()

    def prepare(place: tuple[int, int], source: Tensor) -> Head:
        with lock:
            users[id(source)] = place
        return Head(place, source)

    def attend(head: Head, block: int, room: int) -> None:
        with lock:
            assert users[id(head.source)] == head.place
            done.append((head.place, block, room))

    places = [(b, h) for b in range(3) for h in range(5)]
    sources = [torch.empty(1) for _ in range(2)]
    work: Work[int] = Work(places, sources, prepare, attend)
    Threads(workers).run(work.take_part, range(workers))
    blocks = sorted((place, block) for place, block, _ in done)
    assert blocks == [(place, block) for place in places for block in range(place[1])]
    assert {room for *_, room in done} <= set(range(workers))


@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_ends_the_work_of_all(workers: int) -> None:
    def fail(head: Head, block: int, _room: int) -> None:
        raise MemoryError(f"{head.place} {block}")

    work: Work[int] = Work([(0, 4), (1, 4)], [torch.empty(1)], Head, fail)
    with pytest.raises(MemoryError):
        Threads(workers).run(work.take_part, range(workers))
