"""Threads that share out work by themselves, each running torch on one thread."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from threading import Barrier, Lock
from typing import TypeVar

import torch

Tool = TypeVar("Tool")


class Threads:
    """Workers that do a job together, the caller as one of them.

    For many operations that are too short for threads to share each of them.
    """

    def __init__(self, size: int) -> None:
        """Start `size - 1` threads."""
        self.size = size
        self._pool = ThreadPoolExecutor(size - 1, "svoo") if size > 1 else None
        if self._pool is not None:
            together, threads = Barrier(size - 1), torch.get_num_threads()

            def begin(_worker: int) -> None:
                torch.set_num_threads(1)
                together.wait()  # so that no worker begins twice

            list(self._pool.map(begin, range(size - 1)))
            # The workers' setting became the default of threads yet to come: put it back.
            torch.set_num_threads(threads)

    def run(self, job: Callable[[Tool], None], tools: Sequence[Tool]) -> None:
        """Run the job in every worker, each with a tool of its own; an error in one is raised
        here."""
        inference, threads = torch.is_inference_mode_enabled(), torch.get_num_threads()

        def take_part(tool: Tool) -> None:
            # Both modes belong to a thread, and a new thread has neither.
            with torch.inference_mode(inference), torch.no_grad():
                job(tool)

        others = []
        if self._pool is not None:
            send_openmp_to_sleep()
            others = [self._pool.submit(take_part, tool) for tool in tools[1:]]
        torch.set_num_threads(1)
        try:
            take_part(tools[0])
        finally:
            _wait_for(others)
            torch.set_num_threads(threads)
        for other in others:
            other.result()


def _wait_for(others: Sequence[Future[None]]) -> None:
    """Wait, through Ctrl-C too: nobody may work on a call's tensors after it."""
    try:
        wait(others)
    except KeyboardInterrupt:
        wait(others)
        raise


_started: dict[tuple[int, int], Threads] = {}
_lock = Lock()


def find_threads(size: int) -> Threads:
    """Return the process's threads of this size; its threads are started once."""
    key = os.getpid(), size  # threads do not survive a fork
    with _lock:
        if key not in _started:
            _started[key] = Threads(size)
        return _started[key]


def send_openmp_to_sleep() -> None:
    """End the calling thread's OpenMP threads; torch starts them anew when it needs them.

    After an operation they spin for some milliseconds, on the cores that the workers want.
    """
    pause = _find_openmp_pause()
    if pause is not None:
        pause(1)  # omp_pause_soft: keeps the settings, such as the number of threads


@cache
def _find_openmp_pause() -> Callable[[int], int] | None:
    """Return `omp_pause_resource_all` of the OpenMP that torch is linked to, if it has one."""
    try:
        return ctypes.CDLL(torch._C.__file__).omp_pause_resource_all
    except (AttributeError, OSError):  # another thread pool, or a loader that hides it
        return None
