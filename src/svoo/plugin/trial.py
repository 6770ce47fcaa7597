"""Trials: the same prompt and noise, dense and in several modes, timed and compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from svoo.core.random import seeded
from svoo.methods.svoo.config import SVOOConfig
from svoo.metrics.compare import Likeness, compare_videos
from svoo.plugin.run import LoopTimer, apply_config, read_stats
from svoo.profiles.profile import Profile

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
    config: SVOOConfig | None
    frames: NDArray[np.float32]
    denoising: float
    total: float
    attention: float
    density: float
    recall: float
    stats: Mapping[str, Any]
    likeness: Likeness | None


def warm_up(pipe: Any, call: Mapping[str, Any]) -> None:  # noqa: ANN401 (any pipeline class)
    """Run one step dense and one sparse, so that no trial is charged for what only the first call
    does: compiling kernels, asking the system for memory."""
    once = {**call, "num_inference_steps": 1, "output_type": "latent"}
    for config in (None, SVOOConfig(dense_steps=0, dense_layers=0)):
        with apply_config(pipe, config, None):
            pipe(**once, generator=seeded(0))


def run_trial(
    pipe: Any,  # noqa: ANN401 (any pipeline class)
    name: str,
    config: SVOOConfig | None,
    *,
    call: Mapping[str, Any],
    profile: Profile | None = None,
    seed: int = 0,
    against: Trial | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> Trial:
    """Generate with `config` (None: dense) and compare with the trial `against`, if any.

    `profile=None` looks for a stored one, or measures in the warm-up.
    """
    early: list[Mapping[str, Any]] = []  # the statistics when warm-up and ramp are over
    with apply_config(pipe, config, profile or "auto") as handle:

        def note_step(done: int, steps: int) -> None:
            if config is not None:
                open_now, open_next = (
                    config.dense_share(step, steps) for step in (done - 1, done)
                )
                if open_now > 0 and open_next == 0:
                    early.append(read_stats(handle))
            if on_step is not None:
                on_step(done, steps)

        clock, start = LoopTimer(note_step), time.perf_counter()
        generator = seeded(seed)
        arguments = {**call, "generator": generator, "output_type": "np"}
        frames = pipe(**arguments, **clock.as_argument(pipe)).frames[0]
        total, stats = time.perf_counter() - start, read_stats(handle)
    aside = stats["seconds"]["recall"]
    return Trial(
        name,
        config,
        frames,
        clock.seconds - aside,
        total - aside,
        _seconds_a_call(stats, early[0] if early else None),
        1.0 if stats["density"] is None else stats["density"],
        _mean_recall(stats),
        stats,
        None if against is None else compare_videos(against.frames, frames),
    )


def _seconds_a_call(stats: Mapping[str, Any], early: Mapping[str, Any] | None) -> float:
    """Return seconds a call, of those that came after the `early` statistics, if any did."""
    phases = SPARSE_PHASES if stats["density"] is not None else ("dense",)
    kind = "sparse_calls" if stats["density"] is not None else "dense_calls"

    def so_far(taken: Mapping[str, Any]) -> tuple[float, int]:
        calls = sum(row[kind] for row in taken["layers"])
        return sum(taken["seconds"][phase] for phase in phases), calls

    seconds, calls = so_far(stats)
    seconds_before, calls_before = (0.0, 0) if early is None else so_far(early)
    if calls_before == calls:
        return seconds / calls
    return (seconds - seconds_before) / (calls - calls_before)


def _mean_recall(stats: Mapping[str, Any]) -> float:
    if stats["density"] is None:
        return 1.0
    known = [row["recall"] for row in stats["layers"] if row["recall"] is not None]
    return sum(known) / len(known) if known else float("nan")
