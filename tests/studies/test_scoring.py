from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from svoo.studies.scoring import Scoring

FRAMES = np.zeros((3, 4, 4, 3), dtype=np.float32)


class Fixed:
    """Gives the same scores to every video, or fails."""

    names: tuple[str, ...] = ("sharp", "still")

    def __init__(self, found: Mapping[str, float] | None) -> None:
        self.found = found

    def __call__(self, frames: NDArray[np.floating[Any]]) -> dict[str, float]:
        if self.found is None or len(frames) != len(FRAMES):
            raise ValueError("no")
        return dict(self.found)


def test_scores_that_are_no_numbers_are_left_out() -> None:
    scoring = Scoring(Fixed({"sharp": 1.5, "still": float("nan")}))
    assert scoring.score(FRAMES) == {"sharp": 1.5}
    assert Scoring().score(FRAMES) == {}


def test_a_scorer_that_fails_costs_its_scores_alone() -> None:
    with pytest.warns(UserWarning, match="a run without scores: ValueError: no"):
        assert Scoring(Fixed(None)).score(FRAMES) == {}


def test_a_run_lacks_what_can_be_had_and_is_not_there() -> None:
    run = {"ssim": 0.9, "lpips": None, "scores": {"sharp": 1.0}}
    assert not Scoring().is_lacking(run)
    assert Scoring(lpips=True).is_lacking(run)
    assert not Scoring(lpips=True).is_lacking({**run, "ssim": None})  # dense: with what?
    whole = {**run, "scores": {"sharp": 1.0, "still": 1.0}}
    assert Scoring(Fixed({})).is_lacking(run) and not Scoring(Fixed({})).is_lacking(whole)
