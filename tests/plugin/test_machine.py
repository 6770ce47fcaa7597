import os
from pathlib import Path

import pytest

from svoo.plugin.machine import (
    OtherWork,
    _processor,
    describe_commit,
    describe_machine,
    name_machine,
)


def test_a_figure_says_where_it_was_made() -> None:
    expected = {"processor", "instructions", "threads", "device", "python", "svoo", "torch"}
    assert expected <= set(describe_machine())


def test_a_processor_is_told_apart_by_family_and_model(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    core = (
        "processor\t: {}\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nflags : a b\n\n"
    )
    cpuinfo.write_text(core.format(0) + core.format(1))
    assert _processor(cpuinfo) == "AMD EPYC (family 26, model 2)"
    cpuinfo.write_text("processor\t: 0\nBogoMIPS\t: 50.0\n")  # an Arm processor says no more
    assert "family" not in _processor(cpuinfo)
    assert isinstance(_processor(tmp_path / "none"), str)


def test_the_commit_is_that_of_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_commit() != ""

    def no_git(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr("subprocess.run", no_git)
    assert describe_commit() == "released"


def test_machines_are_told_apart_by_what_times_depend_on() -> None:
    machine = {"processor": "P", "instructions": "I", "threads": 2, "device": "cpu", "python": "3"}
    assert name_machine(machine) == "P, I, 2 threads, cpu"
    assert name_machine(machine) != name_machine({**machine, "threads": 1})


def test_the_work_of_others_is_what_is_busy_and_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = tmp_path / "stat"
    own = os.times_result((0.0, 0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr("os.times", lambda: own)
    monkeypatch.setattr("os.sysconf", lambda _: 100)
    stat.write_text("cpu  1000 0 500 8000 500 0 0 0 0 0\ncpu0 1\n")
    watch = OtherWork(stat)
    assert watch.share() == 0.0  # no time has passed
    # Ten seconds on two cores: 12 s busy, of which 9 are ours.
    stat.write_text("cpu  2000 100 600 8700 600 0 0 0 0 0\ncpu0 1\n")
    own = os.times_result((8.0, 0.5, 0.5, 0.0, 0.0))
    assert watch.share() == pytest.approx(3 / 20)
    assert OtherWork(tmp_path / "none").share() is None
    stat.write_text("nothing that can be read\n")
    assert OtherWork(stat).share() is None
