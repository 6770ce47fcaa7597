import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ui_fakes import FakeMaker, settings, until

from svoo.app.ui.problems import Problem
from svoo.app.ui.queue import JobQueue, Outcome
from svoo.app.ui.store import Store


class Bench:
    def __init__(self, folder: Path, *, waiting: int = 5) -> None:
        self.maker, self.store = FakeMaker(), Store(folder)
        self.queue = JobQueue(self.store, self.maker, waiting)
        self.queue.start()

    def add(self, **fields: Any) -> str:
        return str(self.queue.add(settings(**fields), None)["id"])

    def status(self, name: str) -> str:
        return str(self.queue.describe(name)["status"])

    def wait(self, name: str, status: str) -> dict[str, Any]:
        until(lambda: self.status(name) == status)
        return self.queue.describe(name)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "jobs")
    yield bench
    bench.queue.stop(10)


def test_videos_are_made_one_at_a_time_in_order(bench: Bench) -> None:
    bench.maker.gate.clear()
    names = [bench.add(seed=seed) for seed in range(4)]
    bench.wait(names[0], "in_progress")
    told = [bench.queue.describe(name) for name in names]
    assert [row["waiting_before"] for row in told] == [None, 0, 1, 2]
    bench.maker.gate.set()
    done = [bench.wait(name, "completed") for name in names]
    assert bench.maker.made == [0, 1, 2, 3]
    assert done[0]["figures"]["density"] == 0.5 and done[0]["notes"] == ["a note"]
    assert {job.id: job.status for job in bench.store.load()} == dict.fromkeys(names, "completed")


def test_a_figure_that_is_no_number_does_not_break_the_list(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = Outcome({"error": float("nan"), "density": 0.5})
    monkeypatch.setattr(bench.maker, "make", lambda *_asked: outcome)
    done = bench.wait(bench.add(), "completed")
    assert done["figures"] == {"error": None, "density": 0.5}
    json.dumps(bench.queue.describe_all(None, 5, newest_first=True), allow_nan=False)


def test_a_full_queue_refuses_and_loses_nothing(bench: Bench) -> None:
    bench.maker.gate.clear()
    first = bench.add()
    bench.wait(first, "in_progress")
    names = [bench.add() for _ in range(5)]
    with pytest.raises(Problem, match="5 videos are waiting already") as refused:
        bench.add()
    assert refused.value.status == 429
    bench.queue.cancel(names[2])
    names.append(bench.add())  # there is room again
    bench.maker.gate.set()
    for name in (first, *names[:2], *names[3:]):
        bench.wait(name, "completed")
    assert bench.status(names[2]) == "failed"


def test_cancelling_stops_a_running_video_and_the_next_begins(bench: Bench) -> None:
    bench.maker.gate.clear()
    first, second = bench.add(), bench.add(seed=9)
    bench.wait(first, "in_progress")
    bench.queue.cancel(first)
    told = bench.wait(first, "failed")
    assert told["error"]["code"] == "cancelled" and told["phase"] == ""
    assert bench.store.find(bench.queue.get(first), "video") is None
    bench.maker.gate.set()
    bench.wait(second, "completed")
    assert bench.maker.made == [9]
    assert bench.queue.cancel(second)["status"] == "completed"  # too late changes nothing


def test_removing_forgets_running_waiting_and_finished_ones(bench: Bench) -> None:
    finished = bench.add()
    bench.wait(finished, "completed")
    bench.maker.gate.clear()
    running, waiting = bench.add(), bench.add()
    bench.wait(running, "in_progress")
    for name in (waiting, running, finished):
        bench.queue.remove(name)
        with pytest.raises(Problem, match="no such video"):
            bench.queue.describe(name)
    until(lambda: not list(bench.store.folder.iterdir()))  # the running one stops first
    bench.maker.gate.set()
    bench.wait(bench.add(), "completed")


def test_a_video_that_fails_says_why_and_does_not_end_the_queue(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    told = bench.wait(bench.add(prompt="broken"), "failed")
    assert told["error"]["message"] == "RuntimeError: out of luck" and "out of luck" in caplog.text
    assert bench.store.find(bench.queue.get(told["id"]), "video") is None  # nothing half
    bench.wait(bench.add(), "completed")


def test_stopping_marks_what_is_not_made_and_a_new_server_knows(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "jobs")
    done = bench.add()
    bench.wait(done, "completed")
    bench.maker.gate.clear()
    running, waiting = bench.add(), bench.add()
    bench.wait(running, "in_progress")
    bench.queue.stop(30)
    with pytest.raises(Problem, match="being stopped"):
        bench.add()
    again = JobQueue(Store(tmp_path / "jobs"), FakeMaker(), 5)
    rows, more = again.describe_all(None, 10, newest_first=False)
    found = {row["id"]: (row["status"], (row["error"] or {}).get("code")) for row in rows}
    assert not more and found == {
        done: ("completed", None),
        running: ("failed", "interrupted"),
        waiting: ("failed", "interrupted"),
    }


def start_one_that_hangs(folder: Path) -> tuple[Store, FakeMaker, JobQueue, str]:
    """Return a queue whose first video, of that name, is begun and waits for the maker's gate."""

    class Stuck(FakeMaker):
        def make(self, *_settings: Any) -> Any:
            self.gate.wait()

    store, maker = Store(folder / "jobs"), Stuck()
    maker.gate.clear()
    queue = JobQueue(store, maker, 5)
    queue.start()
    name = queue.add(settings(), None)["id"]
    until(lambda: queue.describe(name)["status"] == "in_progress")
    return store, maker, queue, name


def test_a_step_that_takes_too_long_is_marked_and_not_waited_for(tmp_path: Path) -> None:
    store, maker, queue, name = start_one_that_hangs(tmp_path)
    queue.stop(0.1)
    assert store.load()[0].error == queue.get(name).error and queue.get(name).ended
    maker.gate.set()


def test_a_running_video_that_was_removed_does_not_come_back(tmp_path: Path) -> None:
    store, maker, queue, name = start_one_that_hangs(tmp_path)
    queue.remove(name)
    assert Store(tmp_path / "jobs").load() == []  # as after a crash
    queue.stop(0.1)
    assert store.load() == []
    maker.gate.set()
    maker.gate.set()


def test_pages(bench: Bench) -> None:
    names = [bench.add() for _ in range(5)]
    rows, more = bench.queue.describe_all(None, 2, newest_first=True)
    assert [row["id"] for row in rows] == [names[4], names[3]] and more
    rows, more = bench.queue.describe_all(names[3], 5, newest_first=True)
    assert [row["id"] for row in rows] == names[2::-1] and not more
    with pytest.raises(Problem, match="no such video"):
        bench.queue.describe_all("video_none", 2, newest_first=True)
