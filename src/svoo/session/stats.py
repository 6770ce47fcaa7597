"""What happened in a run: calls, densities, times and reasons. Counting never waits for a
device; reading does."""

from __future__ import annotations

import math
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
    """Adds up the seconds of each phase: wall time on the CPU, CUDA events on a GPU."""

    def __init__(self) -> None:
        """Start at zero."""
        self._seconds: dict[str, float] = defaultdict(float)
        self._events: dict[str, deque[tuple[torch.cuda.Event, torch.cuda.Event]]] = defaultdict(
            deque
        )

    @contextmanager
    def phase(self, name: str, device: torch.device) -> Iterator[None]:
        """Time the body of a `with` statement as phase `name`."""
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
        """Return the seconds of each phase; waits for a CUDA device."""
        for pairs in self._events.values():
            for _, end in pairs:
                end.synchronize()
        self.fold()
        return {name: self._seconds.get(name, 0.0) for name in PHASES}

    def fold(self) -> None:
        """Add up the CUDA events that are complete and free them; does not wait."""
        for name, pairs in self._events.items():
            while pairs and pairs[0][1].query():
                start, end = pairs.popleft()
                self._seconds[name] += start.elapsed_time(end) / 1e3


class RunningMean:
    """The mean of tensors of one shape, kept as their sum on the device."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._sum: Tensor | None = None
        self._count = 0

    def add(self, value: Tensor) -> None:
        """Add a tensor; does not wait for the device."""
        before = (
            None if self._sum is None else self._sum.to(value.device)
        )  # the model may have moved
        self._sum = value.float() if before is None else before + value
        self._count += 1

    @property
    def nbytes(self) -> int:
        """Bytes of the sum."""
        return 0 if self._sum is None else self._sum.nbytes

    def value(self) -> Tensor | None:
        """Return the mean, on the CPU; None if nothing was added."""
        return None if self._sum is None else (self._sum / self._count).cpu()


class LayerCounter:
    """Counts the calls of one layer."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.sparse_calls = 0
        self.dense_calls = 0
        self.reasons: Counter[str] = Counter()
        self.backends: Counter[str] = Counter()
        self.work: defaultdict[str, float] = defaultdict(float)
        self.density = RunningMean()  # [heads]
        self.recall = RunningMean()
        self.squared_error = RunningMean()
        self.watch = Stopwatch()

    @property
    def nbytes(self) -> int:
        """Bytes kept on the device."""
        return self.density.nbytes + self.recall.nbytes + self.squared_error.nbytes

    def read(self, stage: int, layer: int) -> LayerStats:
        """Return the counts as plain numbers; waits for the device."""
        density, recall = self.density.value(), self.recall.value()
        squared = self.squared_error.value()
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
            error=None if squared is None else math.sqrt(float(squared.mean())),
            work={phase: share / calls for phase, share in self.work.items()},
            seconds=self.watch.seconds(),
        )


@dataclass(frozen=True)
class LayerStats:
    """The calls of one layer.

    `density` and `recall` are means over its sparse calls; `error` is how far outputs are from
    dense ones, relative to these (root of the mean square). None if there was no such call, or it
    was not measured. `work` is what the method computes besides the kept pairs, as a share of
    dense attention, by phase: a mean over sparse calls too.
    """

    stage: int
    layer: int
    sparse_calls: int
    dense_calls: int
    dense_reasons: dict[str, int]
    backends: dict[str, int]
    density: float | None
    density_by_head: list[float] | None
    recall: float | None
    error: float | None
    work: dict[str, float]
    seconds: dict[str, float]


@dataclass(frozen=True)
class RunStats:
    """What happened so far: in all calls of a pipeline, or in one session."""

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
        """Number of sparse attention calls, all layers together."""
        return sum(layer.sparse_calls for layer in self.layers)

    @property
    def dense_calls(self) -> int:
        """Number of dense attention calls, all layers together."""
        return sum(layer.dense_calls for layer in self.layers)

    @property
    def density(self) -> float | None:
        """Mean density over all sparse calls; None if there was none."""
        return self._mean("density")

    @property
    def recall(self) -> float | None:
        """Mean recall over all sparse calls; None if it was not measured."""
        return self._mean("recall")

    @property
    def error(self) -> float | None:
        """How far outputs of sparse calls are from dense ones, relative to these: the root of the
        mean square over all of them, from a few queries each; None if it was not measured."""
        squares = [
            (layer.sparse_calls, layer.error**2)
            for layer in self.layers
            if layer.error is not None
        ]
        calls = sum(count for count, _ in squares)
        if not calls:
            return None
        return math.sqrt(sum(count * square for count, square in squares) / calls)

    @property
    def work(self) -> dict[str, float]:
        """What is computed besides the kept pairs, as a share of dense attention, by phase: means
        over all sparse calls."""
        total: defaultdict[str, float] = defaultdict(float)
        for layer in self.layers:
            for phase, share in layer.work.items():
                total[phase] += share * layer.sparse_calls
        return {phase: share / max(1, self.sparse_calls) for phase, share in total.items()}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase, all layers together."""
        return {phase: sum(layer.seconds[phase] for layer in self.layers) for phase in PHASES}

    def _mean(self, name: str) -> float | None:
        """Return the mean of a figure over layers, weighted by their sparse calls."""
        known = [layer for layer in self.layers if getattr(layer, name) is not None]
        calls = sum(layer.sparse_calls for layer in known)
        if not calls:
            return None
        total: float = sum(getattr(layer, name) * layer.sparse_calls for layer in known)
        return total / calls

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain data, totals included."""
        totals = ("density", "recall", "error", "work", "seconds", "sparse_calls", "dense_calls")
        return {**asdict(self), **{name: getattr(self, name) for name in totals}}


class Statistics:
    """The counters of all layers, and notes to the user. A pipeline keeps one for all its
    sessions."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.layers: dict[tuple[int, int], LayerCounter] = {}
        self.notes: list[str] = []

    def layer(self, stage: int, layer: int) -> LayerCounter:
        """Return the counter of a layer, new if there is none."""
        return self.layers.setdefault((stage, layer), LayerCounter())

    def note(self, text: str) -> None:
        """Add a note to the summary, unless it is there already."""
        if text not in self.notes:
            self.notes.append(text)

    def fold(self) -> None:
        """Add up the CUDA events that are complete; does not wait."""
        for counter in self.layers.values():
            counter.watch.fold()

    @property
    def nbytes(self) -> int:
        """Bytes kept on the device."""
        return sum(counter.nbytes for counter in self.layers.values())

    def read(self) -> list[LayerStats]:
        """Return the numbers of each layer, by stage and layer; waits for the device."""
        return [
            self.layers[stage, layer].read(stage, layer) for stage, layer in sorted(self.layers)
        ]
