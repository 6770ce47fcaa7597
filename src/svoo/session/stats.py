"""What happened in a run: calls, densities, times and reasons, gathered without waiting for a
device."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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
            stream = torch.cuda.current_stream(device)  # not that of the current device
            start.record(stream)
            yield
            end.record(stream)
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


class LayerCounter:
    """Counts the calls of one layer as they come."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.sparse_calls = 0
        self.dense_calls = 0
        self.reasons: Counter[str] = Counter()
        self.backends: Counter[str] = Counter()
        self.work: defaultdict[str, float] = defaultdict(float)
        self.density = RunningMean()  # [heads]
        self.recall = RunningMean()
        self.watch = Stopwatch()

    @property
    def nbytes(self) -> int:
        """Bytes kept on the device."""
        return self.density.nbytes + self.recall.nbytes

    def read(self, stage: int, layer: int) -> LayerStats:
        """Return plain numbers and words; waits for the device."""
        density, recall = self.density.value(), self.recall.value()
        calls = max(1, self.sparse_calls)
        return LayerStats(
            stage,
            layer,
            sparse_calls=self.sparse_calls,
            dense_calls=self.dense_calls,
            dense_reasons=dict(self.reasons),
            backends=dict(self.backends),
            density=None if density is None else float(density.mean()),
            density_by_head=None if density is None else density.tolist(),
            recall=None if recall is None else float(recall.mean()),
            work={phase: share / calls for phase, share in self.work.items()},
            seconds=self.watch.seconds(),
        )


@dataclass(frozen=True)
class LayerStats:
    """One layer's calls. Density, recall and work (shares of dense attention done besides the kept
    pairs) are means over its sparse calls; None where there was none."""

    stage: int
    layer: int
    sparse_calls: int
    dense_calls: int
    dense_reasons: dict[str, int]
    backends: dict[str, int]
    density: float | None
    density_by_head: list[float] | None
    recall: float | None
    work: dict[str, float]
    seconds: dict[str, float]


@dataclass(frozen=True)
class RunStats:
    """What happened so far, over all calls of a pipeline or all steps of a session."""

    method: str
    backend: str
    calls: int
    steps: int | None
    budgets: str
    layers: Sequence[LayerStats]
    state_bytes: int
    notes: Sequence[str] = ()

    @property
    def sparse_calls(self) -> int:
        """Sparse calls of all layers."""
        return sum(layer.sparse_calls for layer in self.layers)

    @property
    def dense_calls(self) -> int:
        """Dense calls of all layers."""
        return sum(layer.dense_calls for layer in self.layers)

    @property
    def density(self) -> float | None:
        """Mean over all sparse calls; None if there was none."""
        return self._mean("density")

    @property
    def recall(self) -> float | None:
        """Mean over all sparse calls; None if it was not measured."""
        return self._mean("recall")

    @property
    def work(self) -> dict[str, float]:
        """Shares of dense attention done besides the kept pairs: means over all sparse calls."""
        total: defaultdict[str, float] = defaultdict(float)
        for layer in self.layers:
            for phase, share in layer.work.items():
                total[phase] += share * layer.sparse_calls
        return {phase: share / max(1, self.sparse_calls) for phase, share in total.items()}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase, of all layers."""
        return {phase: sum(layer.seconds[phase] for layer in self.layers) for phase in PHASES}

    def _mean(self, name: str) -> float | None:
        known = [layer for layer in self.layers if getattr(layer, name) is not None]
        calls = sum(layer.sparse_calls for layer in known)
        if not calls:
            return None
        total: float = sum(getattr(layer, name) * layer.sparse_calls for layer in known)
        return total / calls

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        totals = ("density", "recall", "work", "seconds", "sparse_calls", "dense_calls")
        return {**asdict(self), **{name: getattr(self, name) for name in totals}}


class Statistics:
    """Counters of all layers, and notes to the user: owned by whoever outlives a session."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.layers: dict[tuple[int, int], LayerCounter] = {}
        self.notes: list[str] = []

    def layer(self, stage: int, layer: int) -> LayerCounter:
        """Return the counter of a layer."""
        return self.layers.setdefault((stage, layer), LayerCounter())

    def note(self, text: str) -> None:
        """Keep a remark for the summary, once."""
        if text not in self.notes:
            self.notes.append(text)

    def fold(self) -> None:
        """Add up the timing events that have passed, without waiting."""
        for counter in self.layers.values():
            counter.watch.fold()

    @property
    def nbytes(self) -> int:
        """Bytes kept on the device."""
        return sum(counter.nbytes for counter in self.layers.values())

    def read(self) -> list[LayerStats]:
        """Return the numbers of every layer; waits for the device."""
        return [self.layers[place].read(*place) for place in sorted(self.layers)]
