"""One run of a study: what it is made with, and its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from svoo.methods.base import MethodConfig
from svoo.metrics.compare import Likeness
from svoo.plugin.trial import Trial


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
    `others` is the share of the machine that other processes took while it was timed.
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


def make_row(trial: Trial, dense: Trial, likeness: Likeness | None, **facts: Any) -> RunRow:  # noqa: ANN401 (fields of the row)
    """Return the figures of a trial beside the dense one; `likeness` is None for the dense one
    itself. `facts` are the row's other fields."""
    seconds = trial.stats.seconds
    equal = likeness is None or math.isinf(likeness.psnr)
    return RunRow(
        **facts,
        method=trial.config.name,
        config=_plain(trial.config.as_dict()),
        backends=sorted({name for layer in trial.stats.layers for name in layer.backends}),
        psnr=None if likeness is None or equal else likeness.psnr,
        ssim=None if likeness is None else likeness.ssim,
        lpips=None if likeness is None else likeness.lpips,
        density=trial.density,
        work=sum(trial.stats.work.values()),
        seconds=trial.denoising,
        dense_seconds=dense.denoising,
        total_seconds=trial.total,
        dense_total_seconds=dense.total,
        planning=seconds["clustering"] + seconds["selection"],
        attention=trial.attention,
        dense_attention=dense.attention,
    )


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON can hold them."""
    simple = (bool, int, float, str, type(None))
    return {
        name: value if isinstance(value, simple) else str(value)
        for name, value in settings.items()
    }
