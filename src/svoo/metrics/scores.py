"""Scores of a video without reference: VBench's where they can be had, and proxies of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
Scorer = Callable[[NDArray[np.floating[Any]]], dict[str, float]]


def find_scorer() -> tuple[Scorer | None, list[str]]:
    """Return what scores a video here (None: nothing), and in words what cannot be had."""
    scorers: list[Scorer] = []
    missing = []
    for name, make in (("VBench", vbench.VBenchScores), ("the proxies", proxies.Proxies)):
        try:
            scorers.append(make())
        except ModelError as error:
            missing.append(f"{name}: {error}")
    if not any(isinstance(scorer, vbench.VBenchScores) for scorer in scorers):
        missing.append("aesthetic quality: not available, and there is no proxy of it")
    if not scorers:
        return None, missing

    def score(frames: NDArray[np.floating[Any]]) -> dict[str, float]:
        return {name: value for scorer in scorers for name, value in scorer(frames).items()}

    return score, missing
