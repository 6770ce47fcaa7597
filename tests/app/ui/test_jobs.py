import json
import time

import pytest
from ui_fakes import settings

from svoo.app.ui.jobs import CANCELLED, Job, without_nan


def job() -> Job:
    return Job.new("fake", settings())


def test_names_differ_and_what_is_kept_comes_back() -> None:
    first, second = job(), job()
    assert first.id != second.id
    first.fail(CANCELLED)
    first.figures, first.notes = {"density": 0.5}, ["a note"]
    assert Job.from_dict(json.loads(json.dumps(first.as_dict()))) == first


def test_numbers_that_json_cannot_say_become_none() -> None:
    nan, inf = float("nan"), float("inf")
    told = without_nan({"a": nan, "b": [1.5, -inf, "nan"], "c": {"d": (inf, 2, True, None)}})
    assert told == {"a": None, "b": [1.5, None, "nan"], "c": {"d": [None, 2, True, None]}}


@pytest.mark.parametrize("wrong", [{}, {"id": 1}, {"settings": {}, "error": 3}])
def test_wrong_records_raise(wrong: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError)):
        Job.from_dict(wrong)


def test_progress_in_percent_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    running = job()
    assert running.describe()["progress"] == 0 and running.seconds_left() is None
    running.status = "in_progress"
    running.progress("denoising", 0, 8)
    assert running.seconds_left() is None
    now[0] = 106.0
    running.progress("denoising", 2, 8)
    assert running.seconds_left() == pytest.approx(18)
    told = running.describe()
    assert (told["progress"], told["step"], told["steps"]) == (25, 2, 8)
    running.progress("writing", 8, 8)
    assert running.describe()["progress"] == 99  # 100 is a finished video
    running.status = "completed"
    assert running.describe()["progress"] == 100
