import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svoo.studies.statistics import best_two, interval, paired

FIGURES = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12)


@given(values=FIGURES)
def test_the_interval_holds_the_median_and_stays_inside_the_values(values: list[float]) -> None:
    found = interval(values)
    assert found is not None
    assert found.median == np.median(values) and found.count == len(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    assert interval(values) == found  # the same draws every time


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    chance = np.random.default_rng(0)
    hits = 0
    for _ in range(100):
        found = interval(chance.normal(size=15).tolist())
        assert found is not None
        hits += found.low <= 0 <= found.high
    assert 85 <= hits <= 100


def test_nothing_has_no_interval_and_one_prompt_shows_nothing() -> None:
    assert interval([]) is None
    one = interval([3.0])
    assert one is not None and one.covers_zero


def test_equal_videos_count_for_the_median_only() -> None:
    found = interval([math.inf, math.inf, 30.0])
    assert found is not None
    assert math.isinf(found.median) and found.high == 30.0
    every = interval([math.inf])
    assert every is not None and math.isinf(every.low)


def test_differences_are_paired() -> None:
    first = {"a": 1.0, "b": 11.0, "c": 21.0}
    second = {"c": 20.0, "b": 10.0, "a": 0.0, "d": 99.0}
    found = paired(first, second)
    assert found is not None
    assert (found.median, found.low, found.high, found.count) == (1.0, 1.0, 1.0, 3)
    assert paired(first, {"z": 1.0}) is None
    equal = paired({"a": math.inf}, {"a": math.inf})
    assert equal is None  # two equal videos: nothing to compare


@pytest.mark.parametrize("higher", [True, False])
def test_the_best_are_marked_with_those_that_nobody_can_tell_apart(higher: bool) -> None:
    sign = 1 if higher else -1
    prompts = [str(number) for number in range(8)]

    def values(level: float, noise: float = 0.0) -> dict[str, float]:
        return {
            name: sign * (level + noise * (-1) ** number) for number, name in enumerate(prompts)
        }

    figures = {"low": values(1), "top": values(10), "tied": values(9.9, 1.0), "mid": values(5)}
    assert best_two(figures, higher_is_better=higher) == (["top", "tied"], ["mid"])
    assert best_two({}, higher_is_better=higher) == ([], [])
    assert best_two({"only": values(1)}, higher_is_better=higher) == (["only"], [])
