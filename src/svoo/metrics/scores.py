"""Scores of a video without reference: VBench's where they can be had, and proxies of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from svoo.errors import ModelError
from svoo.metrics import proxies, vbench

HIGHER_IS_BETTER = {
    proxies.SUBJECT: True,
    proxies.BACKGROUND: True,
    proxies.IMAGING: False,
    **dict.fromkeys(vbench.DIMENSIONS.values(), True),
}


class Scorer(Protocol):
    """Scores a video without reference."""

    @property
    def names(self) -> Sequence[str]:
        """What its scores are called."""

    def __call__(self, frames: NDArray[np.floating[Any]]) -> dict[str, float]:
        """Return the scores of frames `[frames, height, width, 3]` in [0, 1]."""


@dataclass(frozen=True)
class Together:
    """Several scorers as one."""

    parts: Sequence[Scorer]

    @property
    def names(self) -> Sequence[str]:
        """What all of them give."""
        return tuple(name for part in self.parts for name in part.names)

    def __call__(self, frames: NDArray[np.floating[Any]]) -> dict[str, float]:
        """Return the scores of all."""
        return {name: value for part in self.parts for name, value in part(frames).items()}


def find_scorer() -> tuple[Scorer | None, list[str]]:
    """Return what scores a video here (None: nothing), and in words what cannot be had."""
    found: list[Scorer] = []
    missing = []
    for name, make in (("VBench", vbench.VBenchScores), ("the proxies", proxies.Proxies)):
        try:
            found.append(make())
        except ModelError as error:
            missing.append(f"{name}: {error}")
    if not any(isinstance(part, vbench.VBenchScores) for part in found):
        missing.append("aesthetic quality: not available, and there is no proxy of it")
    return (Together(found) if found else None), missing
