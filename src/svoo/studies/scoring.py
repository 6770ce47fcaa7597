"""Scores of the videos that studies make: what can be had here, and what a run lacks of it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from svoo.fleet.jobs import describe
from svoo.metrics.scores import Scorer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Frames = NDArray[np.float32]


@dataclass(frozen=True)
class Scoring:
    """What scores a video without reference (None: nothing), and whether LPIPS' weights are
    here."""

    scorer: Scorer | None = None
    lpips: bool = False

    def score(self, frames: Frames) -> dict[str, float]:
        """Return the scores of a video; one that cannot be had does not cost the run."""
        if self.scorer is None:
            return {}
        try:
            found = self.scorer(frames)
        except Exception as error:  # noqa: BLE001 (of a package that is not ours)
            warnings.warn(f"a run without scores: {describe(error)}", stacklevel=2)
            return {}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def is_lacking(self, run: Mapping[str, Any]) -> bool:
        """Return whether a run in the file lacks a score that can be had here."""
        wanted = set() if self.scorer is None else set(self.scorer.names)
        is_dense = run["ssim"] is None  # it is compared with nothing
        no_lpips = self.lpips and run["lpips"] is None and not is_dense
        return no_lpips or not wanted <= set(run["scores"])
