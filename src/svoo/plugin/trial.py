"""Trials: the same prompt and noise, dense and in several modes, timed and compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from svoo.checks import seeded
from svoo.config import SVOOConfig
from svoo.metrics import Likeness, compare_videos
from svoo.plugin.generate import StepClock
from svoo.plugin.handle import apply
from svoo.profile import Profile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SPARSE_PHASES = ("clustering", "selection", "attention")


@dataclass(frozen=True, eq=False)
class Trial:
    """One generated video, what it took, and how like the dense one it is.

    `denoising` and `total` are seconds, without those spent on measuring recall; `attention` is
    seconds for a call of video self-attention, clustering included, dense warm-up calls left out.
    """

    name: str
    frames: NDArray[np.float32]
    denoising: float
    total: float
    attention: float
    density: float
    recall: float
    stats: Mapping[str, Any]
    likeness: Likeness | None


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
    method = "dense" if config is None else "svoo"
    with apply(pipe, config, profile or "auto", method) as handle:  # type: ignore[arg-type]
        clock, start = StepClock(on_step), time.perf_counter()
        generator = seeded(seed)
        arguments = {**call, "generator": generator, "output_type": "np"}
        frames = pipe(**arguments, **clock.as_argument(pipe)).frames[0]
        total, stats = time.perf_counter() - start, handle.stats()
    aside = stats["seconds"]["measuring"] if config is not None and config.measure_recall else 0.0
    return Trial(
        name,
        frames,
        clock.seconds - aside,
        total - aside,
        _seconds_a_call(stats),
        1.0 if stats["density"] is None else stats["density"],
        _mean_recall(stats),
        stats,
        None if against is None else compare_videos(against.frames, frames),
    )


def _seconds_a_call(stats: Mapping[str, Any]) -> float:
    phases = SPARSE_PHASES if stats["density"] is not None else ("dense",)
    calls = "sparse_calls" if stats["density"] is not None else "dense_calls"
    seconds = sum(stats["seconds"][phase] for phase in phases)
    return float(seconds / sum(row[calls] for row in stats["layers"]))


def _mean_recall(stats: Mapping[str, Any]) -> float:
    if stats["density"] is None:
        return 1.0
    known = [row["recall"] for row in stats["layers"] if row["recall"] is not None]
    return sum(known) / len(known) if known else float("nan")
