import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap

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
    assert 88 <= hits <= 99


def test_nothing_has_no_interval_and_one_prompt_shows_nothing() -> None:
    assert interval([]) is None
    one = interval([3.0])
    assert one is not None and one.covers_zero
    assert interval([math.nan]) is None
    some = interval([math.nan, 3.0])
    assert some == one


def test_equal_videos_count_as_more_than_any_other() -> None:
    found = interval([math.inf, math.inf, 30.0])
    assert found is not None
    assert (found.median, found.low, found.high) == (math.inf, 30.0, math.inf)
    every = interval([math.inf])
    assert every is not None and math.isinf(every.low)
    # Equal to dense on four prompts of five, a little worse than another on one: not "worse".
    better = paired(dict.fromkeys("abcd", math.inf) | {"e": 29.0}, dict.fromkeys("abcde", 30.0))
    assert better is not None and better.median == math.inf and not better.high < 0


@pytest.mark.parametrize("count", [5, 7, 9, 11, 13])
def test_the_ends_are_those_that_can_be_computed_exactly(count: int) -> None:
    """With an odd number n of values the median of a draw is the k-th of them or less with the
    probability that of n picks at least (n + 1) / 2 are among the first k."""
    values = [float(number**2) for number in range(1, count + 1)]
    reached = [
        sum(
            math.comb(count, hits) * place**hits * (count - place) ** (count - hits)
            for hits in range((count + 1) // 2, count + 1)
        )
        / count**count
        for place in range(1, count + 1)
    ]
    found = interval(values)
    assert found is not None
    for end, level in ((found.low, 0.025), (found.high, 0.975)):
        at = next(place for place, share in enumerate(reached) if share >= level)
        # 10,000 draws may only miss where the level itself is almost hit.
        assert abs(reached[at] - level) > 0.005 and abs(reached[at - 1] - level) > 0.005
        assert end == values[at]


def test_the_bootstrap_is_scipys() -> None:
    values = [31.2, 28.4, 35.0, 33.3, 30.1, 29.9, 36.4, 32.2, 27.5, 34.8, 30.6, 33.9]
    found = interval(values)
    other = bootstrap(
        (values,), np.median, n_resamples=10_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert found is not None and found.median == pytest.approx(31.7)
    assert (found.low, found.high) == pytest.approx((other.low, other.high), abs=0.3)


def test_no_winner_where_the_paired_interval_covers_zero() -> None:
    """Ten prompts. "steady" is .1 better than "base" on each though prompts differ by far more;
    "luckier" has a higher median than both, but its differences go both ways."""
    base = {str(number): 20.0 + 3 * number for number in range(10)}
    steady = {name: value + 0.1 for name, value in base.items()}
    jumps = (9, -9, 8, -8, 7, -2, 6, -1, 5, -3)
    luckier = {name: value + jump for (name, value), jump in zip(base.items(), jumps, strict=True)}
    gain = paired(steady, base)
    assert gain is not None and not gain.covers_zero
    assert (gain.median, gain.low, gain.high) == pytest.approx((0.1, 0.1, 0.1))
    unclear = paired(luckier, steady)
    assert unclear is not None and unclear.covers_zero
    assert best_two({"base": base, "steady": steady}, higher_is_better=True) == (
        ["steady"],
        ["base"],
    )
    figures = {"base": base, "steady": steady, "luckier": luckier}
    best, second = best_two(figures, higher_is_better=True)
    assert set(best) >= {"steady", "luckier"} and not second


def test_differences_are_paired() -> None:
    first = {"a": 1.0, "b": 11.0, "c": 21.0}
    second = {"c": 20.0, "b": 10.0, "a": 0.0, "d": 99.0}
    found = paired(first, second)
    assert found is not None
    assert (found.median, found.low, found.high, found.count) == (1.0, 1.0, 1.0, 3)
    assert paired(first, {"z": 1.0}) is None
    equal = paired({"a": math.inf}, {"a": math.inf})
    assert equal is not None and equal.median == 0  # both equal to the dense video: a tie


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


def test_who_is_better_on_the_same_prompts_is_not_second() -> None:
    """ "long" has the higher median, but on six prompts that "short" never saw."""
    easy = {f"easy {number}": 40.0 for number in range(6)}
    hard = [f"hard {number}" for number in range(6)]
    figures = {"long": easy | dict.fromkeys(hard, 20.0), "short": dict.fromkeys(hard, 25.0)}
    assert best_two(figures, higher_is_better=True) == (["long", "short"], [])
    turned = {
        name: {prompt: -value for prompt, value in values.items()}
        for name, values in figures.items()
    }
    assert best_two(turned, higher_is_better=False) == (["long", "short"], [])


def test_few_prompts_beat_nobody() -> None:
    """ "lucky" ran on two prompts only, and was better on both."""
    base = {str(number): 20.0 for number in range(8)}
    figures = {"base": base, "lucky": {"0": 30.0, "1": 30.0}}
    assert best_two(figures, higher_is_better=True) == (["base", "lucky"], [])
