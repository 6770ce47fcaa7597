"""What the benchmarks share: interleaved timing behind a gate, peak memory, the machine, JSON and
plots."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from svoo.catalogue import find_model
from svoo.plugin.machine import describe_commit, describe_machine
from svoo.plugin.provenance import hash_components, hash_settings
from svoo.profiles.find import find_profile
from svoo.storage import write_atomically

Call = Callable[[], object]


# What each library that runs dense attention, or the rest of a model, reads when it is loaded.
_FEWER = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    }
}


def limit_instructions(name: str | None) -> None:
    """Start this program anew so that torch, and with it our kernels, uses no more than these
    instructions ("avx2"); None: all that there are.

    Both sides of a comparison are limited alike. It remains AVX2 code on whatever processor runs
    it. Our kernels are compiled for what torch says that it has found.
    """
    if name is None:
        return
    if name not in _FEWER:
        raise SystemExit(f"no instructions called {name!r}; there are {', '.join(_FEWER)}")
    if torch.backends.cpu.get_cpu_capability().lower() == name:
        return
    wanted = _FEWER[name]
    if wanted.items() <= os.environ.items():
        raise SystemExit(f"torch does not limit itself to {name} here. Nothing timed.")
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **wanted})


def gate(name: str, got: Tensor, expected: Tensor, tolerance: float) -> None:
    """Stop the benchmark unless a result is right: no speed is reported for a wrong one."""
    worst = float((got.double() - expected.double()).abs().max())
    if not worst <= tolerance:
        raise SystemExit(
            f"{name} is wrong: off by {worst:.2e}, allowed {tolerance:.0e}. Nothing timed."
        )


def interleave(calls: Mapping[str, Call], repeats: int) -> dict[str, float]:
    """Return the median seconds of each call, taking turns so that a noisy moment hits all of
    them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def extra_memory(prepare: Callable[[], Call]) -> int:
    """Return the peak bytes that a call needs beyond what it was given, measured in a process
    of its own (Linux)."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child() -> None:
        torch.set_num_threads(1)  # threads do not survive a fork
        call = prepare()
        before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forget the earlier peak
        call()
        sender.send(_status("VmHWM") - before)

    process = context.Process(target=child)
    process.start()
    result: int = receiver.recv()
    process.join()
    return result


def allocated_memory(prepare: Callable[[], Call]) -> int:
    """Return the most bytes of tensors that a call holds at a moment, as torch's profiler sees
    it, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    call = prepare()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        call()
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted(
        (event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]"
    )
    return max(itertools.accumulate(int(change) for _, change in changes))


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"no {field} in /proc/self/status: peak memory needs Linux")


# As they are when a benchmark starts: nothing of its own has run yet.
BEFORE = {"load_before": round(os.getloadavg()[0], 2), "commit": describe_commit()}


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {**describe_machine(), **BEFORE}


def fingerprint(pipe: Any) -> str:  # noqa: ANN401 (any pipeline class)
    """Return a short name of the embedded model's weights and of its stored profile: rows that
    were measured with others are not those of a run."""
    model = find_model("mini")
    stored = find_profile(model, model.layers, model.heads)
    profile = None if stored is None else [stored.density, stored.sigma, stored.masses]
    return hash_settings([hash_components(pipe), profile])


def save(out: Path, name: str, rows: list[dict[str, Any]], **more: object) -> Path:
    """Write rows and the machine as JSON, whole or not at all."""
    path = out / f"{name}.json"
    text = json.dumps({"machine": machine(), "rows": rows, **more}, indent=1)
    write_atomically(path, (text + "\n").encode())
    return path


def plot_growth(
    path: Path, curves: Mapping[str, list[tuple[float, float]]], title: str, y_label: str
) -> None:
    """Draw cost against tokens, both logarithmic, one curve a name."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name, points in curves.items():
        axes.loglog(*zip(*points, strict=True), marker="o", label=name)
    axes.set(title=title, xlabel="tokens", ylabel=y_label)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
