import pytest

from svoo.errors import ConfigError
from svoo.fleet.jobs import OnStep, Outcome, Worker, attempt, describe, run_jobs


def make_worker(calls: list[int]) -> Worker[int, int]:
    def worker(job: int, on_step: OnStep) -> int:
        calls.append(job)
        on_step(1, 2)
        if job == 1:
            raise ConfigError("no one")
        if job == 2 and calls.count(2) < 3:
            raise RuntimeError("two\nand more")
        return job * 10

    return worker


def test_one_that_fails_is_told_and_the_others_go_on() -> None:
    calls: list[int] = []
    seen: list[float] = []
    found = list(
        run_jobs([0, 1, 2, 3], lambda: make_worker(calls), retries=1, on_progress=seen.append)
    )
    assert found == [
        Outcome(0, 0, 0),
        Outcome(1, 1, None, "no one", refused=True),
        Outcome(2, 2, None, "RuntimeError: two", attempts=2),
        Outcome(3, 3, 30),
    ]
    assert calls == [0, 1, 2, 2, 3]  # what is refused once is not tried again
    assert seen == [0.5, 1, 1.5, 2, 2.5, 2.5, 3, 3.5, 4]


def test_a_crash_is_tried_again() -> None:
    calls: list[int] = []
    assert list(run_jobs([2], lambda: make_worker(calls))) == [Outcome(0, 2, 20, attempts=3)]


def test_nothing_is_loaded_for_no_job_and_an_interrupt_ends_it() -> None:
    def refuse() -> Worker[int, int]:
        raise ConfigError("cannot load")

    assert list(run_jobs([], refuse)) == []
    with pytest.raises(ConfigError, match="cannot load"):
        list(run_jobs([1], refuse))
    with pytest.raises(ConfigError, match="retries must be a whole number from 0, got -1"):
        list(run_jobs([1], refuse, retries=-1))

    def interrupted(_job: int, _on_step: OnStep) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(interrupted, 1, lambda *_: None)


def test_errors_in_one_line() -> None:
    assert describe(ValueError("a\nb")) == "ValueError: a"
    assert describe(MemoryError()) == "MemoryError"
