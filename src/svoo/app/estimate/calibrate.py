"""The constants of the machine at hand, from small calls that are timed."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo.app.bench import clustered_tokens, wait_for
from svoo.app.estimate.data import far_field_densities, find_architecture
from svoo.app.estimate.layer import Layer
from svoo.app.estimate.roofline import Rates, Sparse, count_forward
from svoo.app.estimate.work import count_work
from svoo.catalogue import Model
from svoo.core.layout import VideoLayout
from svoo.core.random import seeded
from svoo.methods import TOLERANCE_KNOB
from svoo.methods.base import MethodConfig
from svoo.methods.dense import DenseConfig
from svoo.methods.knobs import tune
from svoo.methods.svoo.config import SVOOConfig
from svoo.plugin.memory import total_bytes
from svoo.session.session import Session
from svoo.session.stats import RunStats

_GRIDS = {"cuda": ((8, 32, 32), (16, 32, 32)), "cpu": ((8, 12, 16), (12, 18, 20))}
_HEADS = 4  # that sparse and dense attention are timed with: the rate is the same for more
_FEW = 64  # tokens of a layer that takes no longer than its calls do
_LAYER = {"cuda": 2e13, "cpu": 4e10}  # FLOP of the layer that is timed, at most
_WARM = 0.3  # seconds of calls before any is timed: a process asks for memory at first
_RUNS = 7  # whose median counts: the least of them is not what a loop of hundreds takes
_NO_LINK = 32e9  # bytes/s between GPUs of one machine where nothing is known: PCIe 4


def measure_rates(
    model: Model, device: torch.device, config: MethodConfig, link: float | None = None
) -> Rates:
    """Return the rates of a device for a model's sizes and a method: an attention call, a layer
    without its attention and sparse calls are timed, the latter two at two sizes."""
    fast = device.type == "cuda"
    kind, dtype = ("cuda", torch.bfloat16) if fast else ("cpu", torch.float32)
    name = torch.cuda.get_device_name(device) if fast else platform.processor() or "this processor"
    small, large = _GRIDS[kind]
    with torch.inference_mode():
        attend = _dense_call(model, device, dtype, _count(large))
        attention = _dense_work(model, _count(large)) / _seconds(attend, device)
        # Of the size of a video: a smaller layer finds more of its numbers in the cache.
        layer = _time_layer(model, device, dtype, 2 * _count(large), _LAYER[kind], attend)
        sparse = None
        if not isinstance(config, DenseConfig):
            points = [_time_sparse(model, device, dtype, config, grid) for grid in (small, large)]
            sparse = None if None in points else _fit_sparse(points)  # type: ignore[arg-type]
    return Rates(
        attention,
        layer.rate,
        bandwidth=1.0,  # nothing is left that would be counted by it
        link=link or _NO_LINK,
        memory=float(total_bytes(device) or 0),
        title=name,
        source="calibrated here: small calls, timed",
        passes=0,
        reorder=0,
        layer_seconds=layer.fixed,
        sparse=sparse,
    )


@dataclass(frozen=True)
class Line:
    """Seconds of a call: some however small it is, and its work over a rate."""

    fixed: float
    rate: float

    @classmethod
    def through(cls, small: tuple[float, float], large: tuple[float, float]) -> Line:
        """Return the line through two pairs of work and seconds; one without a beginning where the
        larger call was no slower, or the small one slower than its work explains."""
        rise = (large[1] - small[1]) / (large[0] - small[0]) if large[0] > small[0] else 0.0
        if rise <= 0:
            return cls(0.0, large[0] / large[1])
        fixed = large[1] - rise * large[0]
        return cls(fixed, 1 / rise) if fixed > 0 else cls(0.0, large[0] / large[1])


def _dense_call(
    model: Model, device: torch.device, dtype: torch.dtype, tokens: int
) -> Callable[[], Tensor]:
    """Return a call of dense attention to tokens in a pipeline's order."""
    shape = (1, tokens, _timed_heads(model), model.head_dim)
    query = torch.randn(*shape, generator=seeded()).to(device, dtype).transpose(1, 2)
    return lambda: scaled_dot_product_attention(query, query, query)


def _dense_work(model: Model, tokens: int) -> float:
    """Return the FLOP of a dense call with the heads that are timed."""
    return 4.0 * tokens**2 * _timed_heads(model) * model.head_dim


def _timed_heads(model: Model) -> int:
    return min(_HEADS, model.heads)


def _time_layer(
    model: Model,
    device: torch.device,
    dtype: torch.dtype,
    tokens: int,
    most: float,
    attend: Callable[[], Tensor],
) -> Line:
    """Return what a layer takes without its attention, from a few tokens and so many; fewer where
    that would be more than so many FLOP. Each run follows an attention call, as in a model: a
    layer that repeats itself finds its numbers in the cache and is faster than any real one."""
    layer = Layer(model, find_architecture(model), device, dtype)

    def point(tokens: int) -> tuple[float, float]:
        states = layer.draw(tokens)
        forward = count_forward(model, tokens)
        seconds = _seconds(lambda: layer(states), device, before=attend)
        return forward.linear / forward.layers, seconds

    each = count_forward(model, tokens).linear / model.layers / tokens
    return Line.through(point(_FEW), point(max(4 * _FEW, min(tokens, int(most / each)))))


@dataclass(frozen=True)
class _Point:
    """Work (FLOP) and seconds of the parts of a sparse call."""

    attention: tuple[float, float]
    clustering: tuple[float, float]
    selection: tuple[float, float]


def _time_sparse(
    model: Model,
    device: torch.device,
    dtype: torch.dtype,
    config: MethodConfig,
    grid: tuple[int, int, int],
) -> _Point | None:
    """Return what a sparse call of so many tokens takes; None where the method stays dense."""
    config = config.always_sparse()
    heads, tokens = _timed_heads(model), _count(grid)
    sides = clustered_tokens(tokens, heads, model.head_dim, dtype, device)

    def attend(config: MethodConfig) -> tuple[RunStats, float]:
        session = Session(config, steps=1, layers=1, heads=heads)
        wait_for(device)
        start = time.perf_counter()
        session.attend(*sides, step=0, layer=0, layout=VideoLayout(*grid))
        wait_for(device)
        took = time.perf_counter() - start
        return session.stats(), took

    if isinstance(config, SVOOConfig):  # the tokens are not a video: keep it sparse all the same
        config = replace(config, densest=1.0, worst_error=1e6)
        if config.tolerance is not None:  # ... and as dense as one
            share = far_field_densities().at(config.tolerance, tokens)
            config = tune(
                config, TOLERANCE_KNOB, share, lambda turned: attend(turned)[0].density or 1.0
            ).config
    runs: list[dict[str, float]] = []
    density: float | None = None
    for _ in range(_RUNS + 1):
        stats, took = attend(config)
        if stats.density is None:
            return None
        density = stats.density
        planning = {phase: stats.seconds[phase] for phase in ("clustering", "selection")}
        # What belongs to no phase (checks, counts) is a part of the call too.
        runs.append(planning | {"attention": took - sum(planning.values())})
    assert density is not None
    usual = {phase: median(run[phase] for run in runs[1:]) for phase in runs[0]}
    work = count_work(config, model, grid, 1, min(1.0, max(density, 1e-6)))
    dense = _dense_work(model, tokens)
    iterations = getattr(config, "iterations", 0) if work.iterations else 0
    each = work.clustering / work.iterations if iterations else 0.0
    return _Point(
        (dense * (density + work.terms), usual["attention"]),
        (dense * each, usual["clustering"] / iterations if iterations else 0.0),
        (dense * work.selection, usual["selection"]),
    )


def _fit_sparse(points: list[_Point]) -> Sparse:
    """Return what sparse calls cost, from those of two sizes."""
    small, large = points
    attention = Line.through(small.attention, large.attention)
    selection = _line_or_free(small.selection, large.selection)
    clustering = _line_or_free(small.clustering, large.clustering)
    return Sparse(
        attention.rate,
        clustering.rate,
        selection.rate,
        call_seconds=attention.fixed,
        clustering_seconds=clustering.fixed,
        selection_seconds=selection.fixed,
    )


def _line_or_free(small: tuple[float, float], large: tuple[float, float]) -> Line:
    """Return the line through two points, or what costs nothing."""
    if not large[1]:
        return Line(0.0, float("inf"))
    return Line.through(small, large) if large[0] else Line(large[1], float("inf"))


def _seconds(
    call: Callable[[], Tensor], device: torch.device, before: Callable[[], object] | None = None
) -> float:
    """Return the median time of a call after some that warm up, each after `before`."""
    found: list[float] = []
    warm_up = 0
    while not warm_up or len(found) < warm_up + _RUNS:
        if before is not None:
            before()
        wait_for(device)
        start = time.perf_counter()
        call()
        wait_for(device)
        found.append(time.perf_counter() - start)
        if not warm_up and sum(found) > _WARM:
            warm_up = len(found)
    return median(found[warm_up:])


def _count(grid: tuple[int, int, int]) -> int:
    frames, rows, columns = grid
    return frames * rows * columns
