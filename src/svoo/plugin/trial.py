"""Trials: the same prompt and noise, dense and in several modes, timed and compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from svoo.core.random import seeded
from svoo.methods.base import MethodConfig
from svoo.methods.dense import DenseConfig
from svoo.methods.svoo.config import SVOOConfig
from svoo.metrics.compare import Likeness, compare_videos
from svoo.plugin.apply import apply
from svoo.plugin.memory import keep_freed_memory
from svoo.plugin.run import LoopTimer
from svoo.profiles.profile import Profile
from svoo.session.stats import RunStats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SPARSE_PHASES = ("clustering", "selection", "attention")


@dataclass(frozen=True, eq=False)
class Trial:
    """One generated video, what it took, and how like the dense one it is.

    `denoising` and `total` are seconds, without those spent on measuring recall; `attention` is
    seconds for a call of video self-attention, clustering included, after warm-up and ramp.
    """

    name: str
    config: MethodConfig
    frames: NDArray[np.float32]
    denoising: float
    total: float
    attention: float
    density: float
    recall: float
    stats: RunStats
    likeness: Likeness | None


def warm_up(pipe: Any, call: Mapping[str, Any]) -> None:  # noqa: ANN401 (any pipeline class)
    """Run one step dense and one sparse, so that no trial is charged for what only the first call
    does: compiling kernels, asking the system for memory, which stays from here on."""
    keep_freed_memory()
    once = {**call, "num_inference_steps": 1, "output_type": "latent"}
    sparse = replace(SVOOConfig().always_sparse(), densest=1.0)  # whatever the tokens are
    for config in (DenseConfig(), sparse):
        with apply(pipe, config, None):
            pipe(**once, generator=seeded(0))


def run_trial(
    pipe: Any,  # noqa: ANN401 (any pipeline class)
    name: str,
    config: MethodConfig | None,
    *,
    call: Mapping[str, Any],
    profile: Profile | Literal["auto"] | None = "auto",
    seed: int = 0,
    against: Trial | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> Trial:
    """Generate with `config` (None: dense) and compare with the trial `against`, if any.

    `profile`: as `apply` takes it; "auto" looks for a stored one, or lets the method measure for
    itself.
    """
    config = DenseConfig() if config is None else config
    early: list[RunStats] = []  # the statistics when warm-up and ramp are over
    with apply(pipe, config, profile) as handle:

        def note_step(done: int, steps: int) -> None:
            if isinstance(config, SVOOConfig):
                now, later = (config.dense_share(step, steps) for step in (done - 1, done))
                if now > 0 and later == 0:
                    early.append(handle.stats())
            if on_step is not None:
                on_step(done, steps)

        timer, start = LoopTimer(note_step), time.perf_counter()
        arguments = {**call, "generator": seeded(seed), "output_type": "np"}
        frames = pipe(**arguments, **timer.as_argument(pipe)).frames[0]
        total, stats = time.perf_counter() - start, handle.stats()
    aside = stats.seconds["recall"]
    sparse = stats.density is not None
    return Trial(
        name,
        config,
        frames,
        timer.seconds - aside,
        total - aside,
        _seconds_per_call(stats, early[0] if early else None),
        1.0 if stats.density is None else stats.density,
        1.0 if not sparse else float("nan") if stats.recall is None else stats.recall,
        stats,
        None if against is None else compare_videos(against.frames, frames),
    )


def _seconds_per_call(stats: RunStats, early: RunStats | None) -> float:
    """Return seconds per call, of those that came after the `early` statistics, if any did."""
    sparse = stats.density is not None

    def so_far(taken: RunStats) -> tuple[float, int]:
        phases = SPARSE_PHASES if sparse else ("dense",)
        calls = taken.sparse_calls if sparse else taken.dense_calls
        return sum(taken.seconds[phase] for phase in phases), calls

    seconds, calls = so_far(stats)
    seconds_before, calls_before = (0.0, 0) if early is None else so_far(early)
    if calls_before == calls:
        return seconds / calls
    return (seconds - seconds_before) / (calls - calls_before)
