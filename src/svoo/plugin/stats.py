"""What happened in a run: calls, densities, times and reasons, gathered without waiting for a
device."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

PHASES = ("clustering", "selection", "attention", "dense", "measuring", "recall")


class Stopwatch:
    """Adds up seconds by phase: wall time on the CPU, events on a CUDA device, read only when
    asked."""

    def __init__(self) -> None:
        """Start at nothing."""
        self._seconds: dict[str, float] = defaultdict(float)
        self._events: dict[str, deque[tuple[torch.cuda.Event, torch.cuda.Event]]] = defaultdict(
            deque
        )

    @contextmanager
    def phase(self, name: str, device: torch.device) -> Iterator[None]:
        """Time what is done inside."""
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            yield
            end.record()
            self._events[name].append((start, end))
        else:
            begin = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - begin

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every phase; waits for a CUDA device."""
        for pairs in self._events.values():
            for _, end in pairs:
                end.synchronize()
        self.fold()
        return {name: self._seconds.get(name, 0.0) for name in PHASES}

    def fold(self) -> None:
        """Add up the events that have passed, without waiting, so that they do not pile up."""
        for name, pairs in self._events.items():
            while pairs and pairs[0][1].query():
                start, end = pairs.popleft()
                self._seconds[name] += start.elapsed_time(end) / 1e3


class RunningMean:
    """The mean of tensors that come one by one, kept as one sum on their device."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._sum: Tensor | None = None
        self._count = 0

    def add(self, value: Tensor) -> None:
        """Count one more; does not wait for the device."""
        before = None if self._sum is None else self._sum.to(value.device)  # it may have moved
        self._sum = value.float() if before is None else before + value
        self._count += 1

    @property
    def nbytes(self) -> int:
        """Bytes of the sum."""
        return 0 if self._sum is None else self._sum.nbytes

    def value(self) -> Tensor | None:
        """Return the mean on the CPU, or None of nothing."""
        return None if self._sum is None else (self._sum / self._count).cpu()


@dataclass
class LayerStats:
    """One layer's calls."""

    sparse_calls: int = 0
    dense_calls: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    backends: Counter[str] = field(default_factory=Counter)
    density: RunningMean = field(default_factory=RunningMean)  # [heads]
    recall: RunningMean = field(default_factory=RunningMean)
    watch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def nbytes(self) -> int:
        """Bytes kept on the device."""
        return self.density.nbytes + self.recall.nbytes

    def as_data(self) -> dict[str, Any]:
        """Return plain numbers and words; waits for the device."""
        density, recall = self.density.value(), self.recall.value()
        return {
            "sparse_calls": self.sparse_calls,
            "dense_calls": self.dense_calls,
            "dense_reasons": dict(self.reasons),
            "backends": dict(self.backends),
            "density": None if density is None else float(density.mean()),
            "density_by_head": None if density is None else density.tolist(),
            "recall": None if recall is None else float(recall.mean()),
            "seconds": self.watch.seconds(),
        }


def summarise(data: dict[str, Any]) -> str:
    """Return `Handle.stats()` as a text table: a row a layer, then the reasons, then what it
    cost."""
    lines = [
        f"method {data['method']}, {data['calls']} calls of the pipeline, last with "
        f"{data['steps']} steps",
        f"budgets: {data['budgets']}",
        "",
        "stage layer  sparse  dense  density  recall  cluster s  select s  attend s  dense s",
    ]
    reasons: Counter[str] = Counter()
    backends: Counter[str] = Counter()
    for row in data["layers"]:
        seconds = row["seconds"]
        times = "".join(f"{seconds[name]:10.3f}" for name in PHASES[:4])
        lines.append(
            f"{row['stage']:5d} {row['layer']:5d} {row['sparse_calls']:7d} "
            f"{row['dense_calls']:6d} "
            f"{_figure(row['density'])} {_figure(row['recall'])} {times}"
        )
        reasons.update(row["dense_reasons"])
        backends.update(row["backends"])
    lines.append("")
    why = "auto: the first that can run" if data["backend"] == "auto" else "asked for by name"
    lines += [f"{count} calls on the {name} backend ({why})" for name, count in backends.items()]
    lines += [f"{count} dense calls: {reason}" for reason, count in reasons.items()]
    lines += [f"note: {note}" for note in data["notes"]]
    aside = data["seconds"]["measuring"] + data["seconds"]["recall"]
    lines.append(
        f"density over sparse calls {_figure(data['density']).strip()}; measuring took "
        f"{aside:.3f} s; state {data['state_bytes']:,} bytes"
    )
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return "      -" if value is None else f"{value:7.3f}"
