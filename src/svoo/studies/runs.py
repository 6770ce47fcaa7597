"""One run of a study: what it is made with, and its figures."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from svoo.methods.base import MethodConfig
from svoo.metrics.compare import Likeness
from svoo.plugin.trial import Trial

_WARM_UP = re.compile(r"(warm-up: )?the first \d+ ")  # begins the reason of a call in the warm-up


@dataclass(frozen=True)
class Setting:
    """What a video is made with: a method (None: dense) and what differs from the usual run."""

    name: str
    config: MethodConfig | None
    profile: Literal["auto"] | None = "auto"
    seed: int = 0  # added to that of the study
    fewer_steps: int = 0
    dtype: str | None = None


@dataclass(frozen=True)
class RunRow:
    """Figures of one video beside the dense one of the same prompt and noise.

    Seconds are those of the denoising loop; `planning` is the part of clustering and selection,
    `attention` a call's, planning included. `psnr` is None for equal videos and for dense.
    `others` is the share of the machine that other processes took meanwhile; not `timed`: the
    seconds do not count at all. `commit` is the code's.
    `density` is that of the sparse calls, `error` how far these are from dense ones;
    `dense_reasons` counts the dense calls of all layers by reason.
    """

    prompt: str
    machine: str
    tokens: int | None
    steps: int
    seed: int
    method: str
    config: dict[str, Any]
    backends: list[str]
    psnr: float | None
    ssim: float | None
    lpips: float | None
    density: float
    work: float
    seconds: float
    dense_seconds: float
    total_seconds: float
    dense_total_seconds: float
    planning: float
    attention: float
    dense_attention: float
    scores: dict[str, float]
    others: float | None = None
    timed: bool = True
    commit: str = ""
    sparse_calls: int = 0
    dense_calls: int = 0
    error: float | None = None
    dense_reasons: dict[str, int] = field(default_factory=dict)

    @property
    def density_of_all(self) -> float:
        """Density of all calls after the warm-up: one that a method left dense there counts 1."""
        dense = sum(n for why, n in self.dense_reasons.items() if not _WARM_UP.match(why))
        every = self.sparse_calls + dense
        return (self.density * self.sparse_calls + dense) / every if every else self.density


def make_row(trial: Trial, dense: Trial, likeness: Likeness | None, **facts: Any) -> RunRow:  # noqa: ANN401 (fields of the row)
    """Return the figures of a trial beside the dense one; `likeness` is None for the dense one
    itself. `facts` are the row's other fields."""
    stats, seconds = trial.stats, trial.stats.seconds
    reasons = sum((Counter(layer.dense_reasons) for layer in stats.layers), Counter[str]())
    equal = likeness is None or math.isinf(likeness.psnr)
    return RunRow(
        **facts,
        method=trial.config.name,
        config=_plain(trial.config.as_dict()),
        backends=sorted({name for layer in stats.layers for name in layer.backends}),
        psnr=None if likeness is None or equal else likeness.psnr,
        ssim=None if likeness is None else likeness.ssim,
        lpips=None if likeness is None else likeness.lpips,
        density=trial.density,
        work=sum(stats.work.values()),
        seconds=trial.denoising,
        dense_seconds=dense.denoising,
        total_seconds=trial.total,
        dense_total_seconds=dense.total,
        planning=seconds["clustering"] + seconds["selection"],
        attention=trial.attention,
        dense_attention=dense.attention,
        sparse_calls=stats.sparse_calls,
        dense_calls=stats.dense_calls,
        error=stats.error,
        dense_reasons=dict(reasons),
    )


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON can hold them."""
    simple = (bool, int, float, str, type(None))
    return {
        name: value if isinstance(value, simple) else str(value)
        for name, value in settings.items()
    }
