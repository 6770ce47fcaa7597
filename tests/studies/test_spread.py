import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from svoo.plugin.request import Request
from svoo.studies.run import Order, open_lab, pending, run_studies
from svoo.studies.spread import StudyWorker, _divide, spread_studies
from svoo.studies.table import find_studies

pytestmark = pytest.mark.filterwarnings("ignore:the profile was measured with")
NAMES = ["layers", "steps", "theorem"]


def order(out: Path) -> Order:
    request = Request(prompt="", out=out, frames=9, height=32, width=48, steps=2)
    return Order(request, out, count=2, methods=["svg2"])


def test_parts_make_what_one_process_makes(tmp_path: Path) -> None:
    studies = find_studies(NAMES)
    with open_lab(order(tmp_path / "one")) as lab:
        run_studies(pending(studies, lab), lab)
        expected = lab.results
    told: list[tuple[str, float, float]] = []
    with open_lab(order(tmp_path / "many")) as lab:
        wanted = order(tmp_path / "many")
        done = spread_studies(
            pending(studies, lab), lab, wanted, None, lambda *facts: told.append(facts)
        )
        assert (done.left_out, done.failed) == ([], [])
        for name in NAMES:
            assert lab.results.of_kind(name) == expected.of_kind(name)
        assert len(lab.results.of_kind("profile")) == 2
        assert pending(studies, lab) == []
    assert len(told) == 6 and told[-1][1] == told[-1][2]


def test_what_fails_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = StudyWorker.__call__

    def fail(self: StudyWorker, part: Any, on_step: Any) -> Any:
        if part.study == "theorem":
            raise OSError("no room")
        return run(self, part, on_step)

    monkeypatch.setattr(StudyWorker, "__call__", fail)
    with open_lab(order(tmp_path)) as lab:
        todo = pending(find_studies(NAMES), lab)
        done = spread_studies(todo, lab, order(tmp_path), None)
        assert len(done.failed) == 2 and "OSError: no room" in done.failed[0]
        assert len(lab.results.of_kind("layers")) == 2 and not lab.results.of_kind("theorem")
        assert {study.name for study, _ in pending(find_studies(NAMES), lab)} == {"theorem"}


def test_one_job_that_fails_does_not_take_its_part_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("no room")

    monkeypatch.setattr("svoo.studies.lab.Lab.look", fail)  # which layers does not need
    told: list[str] = []
    with open_lab(order(tmp_path)) as lab:
        todo = pending(find_studies(NAMES), lab)
        done = spread_studies(todo, lab, order(tmp_path), None, complain=told.append)
        assert len(done.failed) == 2 and all("OSError: no room" in why for why in done.failed)
        assert told == [f"failed: {why}" for why in done.failed]
        assert len(lab.results.of_kind("layers")) == len(lab.results.of_kind("steps")) == 2


def test_what_was_made_again_replaces_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_lab(order(tmp_path)) as lab:
        todo = pending(find_studies(["theorem"]), lab)
        for _, job in todo:
            lab.results.add("theorem", job.key, {"old": True})
        monkeypatch.setattr("svoo.studies.lab.Lab.has", lambda *_, **__: False)
        spread_studies(todo[:1], lab, order(tmp_path), None)
        rows = lab.results.of_kind("theorem")
        assert "old" not in rows[todo[0][1].key] and "old" in rows[todo[1][1].key]


def test_work_can_be_sent(tmp_path: Path) -> None:
    with open_lab(order(tmp_path)) as lab:
        parts = _divide(pending(find_studies(NAMES), lab), lab.results)
        assert [part.study for part in parts] == ["layers", "steps", "theorem"] * 2
        worker = partial(StudyWorker, order(tmp_path), lab.results.about)
        assert pickle.loads(pickle.dumps((parts, worker)))[0] == parts
