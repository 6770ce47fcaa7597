from types import SimpleNamespace
from typing import Any

import pytest
import studying

from svoo.plugin.machine import name_machine
from svoo.studies.base import Job
from svoo.studies.forecast import make_forecast, what_is_left
from svoo.studies.results import Results
from svoo.studies.scale import Scale, VideoSize

HERE = {"processor": "P", "instructions": "I", "threads": 2, "device": "cpu"}
ELSEWHERE = {**HERE, "processor": "another"}
SIZE = VideoSize(49, 80, 144)


def study(name: str) -> Any:
    return SimpleNamespace(name=name)


def lab_of(results: Results) -> Any:
    return SimpleNamespace(
        results=results,
        machine=name_machine(HERE),
        scale=Scale(SIZE, SIZE, 20),
        time_dense=lambda size: 10.0 * Scale(SIZE, SIZE, 20).cost(size),
    )


def job(key: str, cost: float = 1.0, turn: int = 1) -> Job:
    return Job(key, dict, cost, turn=turn)


def test_without_results_of_this_machine_a_step_is_timed() -> None:
    results = studying.empty()
    results.begin_session({"machine": ELSEWHERE})
    results.add("layers", "a", {}, 1000.0)
    planned = [(study("layers"), job("a", 2.0)), (study("layers"), job("b", 2.0))]
    forecast = make_forecast(planned, lab_of(results))
    assert forecast.usual == pytest.approx(10.0) and not forecast.rates
    assert forecast.total(planned[1:]) == pytest.approx(20.0)


def test_what_this_machine_has_made_says_how_long_the_rest_takes() -> None:
    results = studying.empty()
    results.begin_session({"machine": HERE})
    results.add("quality", "a", {}, 60.0)
    results.add("quality", "b", {}, 20.0)
    results.add("layers", "c", {}, 1.0)
    quality, layers, seeds = study("quality"), study("layers"), study("seeds")
    left = [
        (quality, job("d", 2.0)), (quality, job("e", 2.0)), (quality, job("x", 4.0, turn=2)),
        (layers, job("f", 3.0)), (seeds, job("g", 5.0)),
    ]  # fmt: skip
    done = [(quality, job("a", 2.0)), (quality, job("b", 2.0)), (layers, job("c"))]
    forecast = make_forecast([*done, *left], lab_of(results))
    usual = 81 / 5
    assert forecast.rates == {("quality", 1): 20.0, ("layers", 1): 1.0}
    assert forecast.usual == pytest.approx(usual)
    found = what_is_left(left, forecast)
    assert [(part.study, part.count) for part in found] == [
        ("quality", 2), ("quality", 1), ("layers", 1), ("seeds", 1)
    ]  # fmt: skip
    seconds = [part.seconds for part in found]
    assert seconds == pytest.approx([80.0, 4 * usual, 3.0, 5 * usual])
