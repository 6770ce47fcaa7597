from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import studying

from svoo.errors import ConfigError, ModelError
from svoo.mini.vocabulary import BACKGROUNDS, COLOURS, MOTIONS, SHAPES
from svoo.plugin.calibrate import MINI_PROMPTS, read_prompts
from svoo.plugin.request import Request
from svoo.studies.base import CLAIMS, FIRST, TABLES, Job, Section, Skipped
from svoo.studies.forecast import Forecast
from svoo.studies.results import Results
from svoo.studies.run import (
    LOOKED_AT,
    PROMPTS,
    Order,
    _why_no_lpips,
    bring_up_to_date,
    pending,
    plan_jobs,
    read_study_inputs,
    run_studies,
)
from svoo.studies.scale import Scale, VideoSize
from tools.training.questions import held_out_scenes
from tools.training.scenes import is_held_out


def order(tmp_path: Path, model: str = "mini", **settings: Any) -> Order:
    return Order(Request(prompt="", out=tmp_path, model=model), tmp_path, **settings)


def test_the_packages_prompts_are_held_out() -> None:
    texts, looked_at = read_prompts(PROMPTS), read_prompts(LOOKED_AT)
    assert len(texts) >= 12 and not set(texts) & {*read_prompts(MINI_PROMPTS), *looked_at}
    scenes = held_out_scenes(MOTIONS, len(looked_at) + len(texts))
    assert [*looked_at, *texts] == [scene.caption for scene in scenes]
    for colour in COLOURS:  # what training leaves out is about a tenth of what can be asked
        assert any(
            is_held_out(colour, shape, motion, place)
            for shape in SHAPES
            for motion in MOTIONS
            for place in BACKGROUNDS
        )


def test_inputs_are_counted(tmp_path: Path) -> None:
    assert len(read_study_inputs(order(tmp_path))) == 12
    assert len(read_study_inputs(order(tmp_path, quick=True))) == 2
    assert len(read_study_inputs(order(tmp_path, count=3))) == 3
    own = tmp_path / "own.txt"
    own.write_text("".join(f"a red star number {number}\n" for number in range(14)))
    assert len(read_study_inputs(order(tmp_path, prompts=own))) == 14


def test_prompts_that_a_profile_was_chosen_on_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="profile was measured on"):
        read_study_inputs(order(tmp_path, prompts=MINI_PROMPTS))
    with pytest.raises(ConfigError, match="tolerance was chosen with: studies take others"):
        read_study_inputs(order(tmp_path, prompts=LOOKED_AT))


def test_other_models_need_prompts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --prompts FILE"):
        read_study_inputs(order(tmp_path, model="wan2.1-t2v-1.3b"))
    empty = tmp_path / "empty.txt"
    empty.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="holds no prompt"):
        read_study_inputs(order(tmp_path, prompts=empty))


class Counting:
    """A study whose jobs count how often they are made; the second cannot be made."""

    name, title, paper, about = "layers", "t", "p", "a"

    def __init__(self) -> None:
        self.made: list[str] = []

    def jobs(self, lab: Any) -> list[Job]:  # noqa: ARG002
        def make(key: str) -> dict[str, str]:
            self.made.append(key)
            if key == "b":
                raise Skipped("no such thing")
            return {"key": key}

        return [
            Job(key, lambda key=key: make(key), 2.0, turn=FIRST)  # type: ignore[misc]
            for key in "abc"
        ]

    def show(self, results: Any) -> Section:  # noqa: ARG002
        return Section()


def lab_of(results: Results) -> Any:
    def has(study: str, key: str, *, scored: bool = False) -> bool:  # noqa: ARG001
        return results.find(study, key) is not None

    return SimpleNamespace(results=results, has=has, inputs=[{"prompt": "one"}, {"prompt": "two"}])


def test_what_is_done_is_not_made_again_and_what_was_left_out_is_tried_again() -> None:
    results = studying.empty()
    lab = lab_of(results)
    study, told = Counting(), []
    done = run_studies(pending([study], lab), lab, lambda *facts: told.append(facts))
    assert done.left_out == ["layers: no such thing"] and not done.not_begun
    assert told == [("layers", 0.0, 6.0), ("layers", 2.0, 6.0), ("layers", 4.0, 6.0)]
    assert results.of_kind("layers") == {"a": {"key": "a"}, "c": {"key": "c"}}
    assert results.of_kind("skipped") == {"layers | b": {"why": "no such thing"}}
    run_studies(pending([study], lab), lab)
    assert study.made == ["a", "b", "c", "b"]
    assert [record.kind for record in results.records].count("skipped") == 1  # said once


def test_settings_that_are_back_and_reasons_that_are_gone() -> None:
    results = studying.empty()
    lab = lab_of(results)

    class Changing(Counting):
        keys = ("row | one | first",)

        def jobs(self, lab: Any) -> list[Job]:  # noqa: ARG002
            return [Job(key, lambda key=key: {"key": key}) for key in self.keys]  # type: ignore[misc]

    study = Changing()
    results.add("skipped", "layers | gone", {"why": "no weights"})
    for keys in (("row | one | first",), ("row | one | second",), ("row | one | first",)):
        study.keys = keys
        bring_up_to_date([study], lab)
        run_studies(pending([study], lab), lab)
        assert list(results.of_kind("layers"))[-1] == keys[0]
    assert results.of_kind("skipped") == {"layers | gone": {"why": ""}}
    before = len(results.records)
    bring_up_to_date([study], lab)
    assert len(results.records) == before


def test_what_fails_is_told_and_tried_again_and_the_others_go_on() -> None:
    class Failing(Counting):
        def jobs(self, lab: Any) -> list[Job]:
            def fail() -> dict[str, str]:
                raise OSError("no room")

            jobs = super().jobs(lab)
            return [replace(jobs[0], make=fail), *jobs[1:]]

    lab = lab_of(studying.empty())
    told: list[str] = []
    done = run_studies(pending([Failing()], lab), lab, complain=told.append)
    assert done.failed == ["layers: a: OSError: no room"] and len(done.left_out) == 1
    assert told == ["failed: layers: a: OSError: no room"]
    assert list(lab.results.of_kind("layers")) == ["c"]
    run_studies(pending([Counting()], lab), lab)
    assert list(lab.results.of_kind("layers")) == ["c", "a"]


def test_an_interrupt_stops_at_once() -> None:
    class Interrupted(Counting):
        def jobs(self, lab: Any) -> list[Job]:
            def stop() -> dict[str, str]:
                raise KeyboardInterrupt

            jobs = super().jobs(lab)
            return [replace(jobs[0], make=stop), *jobs[1:]]

    lab = lab_of(studying.empty())
    with pytest.raises(KeyboardInterrupt):
        run_studies(pending([Interrupted()], lab), lab)
    assert lab.results.records == []


def test_why_there_is_no_lpips(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ModelError("not here")

    size, tiny = VideoSize(9, 64, 96), VideoSize(9, 32, 48)
    monkeypatch.setattr("svoo.studies.run.Lpips.load", missing)
    assert _why_no_lpips(Scale(size, size, 4)) == "not here"
    monkeypatch.setattr("svoo.studies.run.Lpips.load", lambda: None)
    assert _why_no_lpips(Scale(size, size, 4)) is None
    assert "at least 35 rows" in str(_why_no_lpips(Scale(size, tiny, 4)))


def test_the_most_important_comes_first_whatever_study_it_belongs_to() -> None:
    class Late(Counting):
        name = "quality"

        def jobs(self, lab: Any) -> list[Job]:
            return [
                replace(job, turn=turn)
                for job, turn in zip(super().jobs(lab), (TABLES, CLAIMS, TABLES), strict=True)
            ]

    planned = plan_jobs([Counting(), Late()], lab_of(studying.empty()))
    assert [(study.name, job.key) for study, job in planned] == [
        ("quality", "b"), ("layers", "a"), ("layers", "b"), ("layers", "c"), ("quality", "a"),
        ("quality", "c"),
    ]  # fmt: skip


def test_in_a_turn_all_studies_have_the_same_prompts() -> None:
    class Prompted(Counting):
        def jobs(self, lab: Any) -> list[Job]:
            keys = ("two", "one", "")
            return [
                replace(job, key=f"{self.name} {prompt}", prompt=prompt)
                for job, prompt in zip(super().jobs(lab), keys, strict=True)
            ]

    class Other(Prompted):
        name = "recall"

    planned = plan_jobs([Prompted(), Other()], lab_of(studying.empty()))
    assert [job.key for _, job in planned] == [
        "layers one", "recall one", "layers two", "recall two", "layers ", "recall ",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "minutes", "made"),
    [
        (1.0, 1.0, 3),  # there is time for all
        (80.0, 3.0, 2),  # the third would end after the three minutes
        (9000.0, 1.0, 1),  # something is always made, or slices would never get anywhere
        (1.0, None, 3),
    ],
)
def test_a_slice_ends_in_time_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch, seconds: float, minutes: float | None, made: int
) -> None:
    clock = [0.0]
    monkeypatch.setattr("svoo.studies.run.monotonic", lambda: clock[0])

    class Slow(Counting):
        def jobs(self, lab: Any) -> list[Job]:  # noqa: ARG002
            def make(key: str) -> dict[str, str]:
                clock[0] += seconds
                return {"key": key}

            return [Job(key, lambda key=key: make(key), 2.0) for key in "abc"]  # type: ignore[misc]

    lab = lab_of(studying.empty())
    studies = [Slow()]
    forecast = Forecast({}, seconds / 2.0)
    done = run_studies(pending(studies, lab), lab, forecast=forecast, minutes=minutes)
    assert list(lab.results.of_kind("layers")) == list("abc"[:made])
    assert [job.key for _, job in done.not_begun] == list("abc"[made:])
    assert {record.seconds for record in lab.results.records} == {seconds}
    run_studies(pending(studies, lab), lab)
    assert list(lab.results.of_kind("layers")) == list("abc")
