"""The processes that torchrun starts for one video: who they are, and how they meet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from svoo.errors import ConfigError

Value = TypeVar("Value")

_PATIENCE = timedelta(minutes=10)  # one rank may load or decode while the others wait


@dataclass(frozen=True)
class Ranks:
    """This process is `rank` of `count`, and number `local` on its machine."""

    rank: int = 0
    count: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def choose_device(self, device: str | None) -> str | None:
        """Return the device of this process, where `device` was asked for; None: the usual."""
        import torch

        if self.count == 1:
            return device
        kind, _, number = (device or "").partition(":")
        if number:
            raise ConfigError(
                f"--device {device} is one GPU, and torchrun started {self.count} processes: "
                "leave it out, each takes its own"
            )
        if kind == "cpu" or (not kind and not torch.cuda.is_available()):
            return "cpu"
        if torch.cuda.device_count() <= self.local:
            raise ConfigError(
                f"torchrun started {self.local + 1} or more processes on this machine, which has "
                f"{torch.cuda.device_count()} GPUs: lower --nproc-per-node"
            )
        return f"{kind or 'cuda'}:{self.local}"

    @contextmanager
    def joined(self, device: str | None) -> Iterator[None]:
        """Meet the other processes: through NCCL on GPUs, through gloo on the CPU."""
        if self.count == 1:
            yield
            return
        import torch
        from torch import distributed

        on_cpu = device == "cpu"
        if not on_cpu:
            torch.cuda.set_device(device)
        backend = "gloo" if on_cpu else "cpu:gloo,cuda:nccl"
        distributed.init_process_group(backend, timeout=_PATIENCE)
        try:
            yield
        finally:
            distributed.destroy_process_group()

    def share(self, value: Value) -> Value:
        """Return the first process's value in all of them; they have `joined`."""
        if self.count == 1:
            return value
        import torch
        from torch import distributed

        box = [value]
        distributed.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]


def find_ranks() -> Ranks:
    """Return what torchrun says of this process; one of one where it was not started by it."""
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK"
    if any(name not in os.environ for name in names):
        return Ranks()
    return Ranks(*(int(os.environ[name]) for name in names))
