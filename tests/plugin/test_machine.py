import pytest

from svoo.plugin.machine import describe_commit, describe_machine


def test_a_figure_says_where_it_was_made() -> None:
    expected = {"processor", "instructions", "threads", "device", "python", "svoo", "torch"}
    assert expected <= set(describe_machine())


def test_the_commit_is_that_of_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_commit() != ""

    def no_git(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr("subprocess.run", no_git)
    assert describe_commit() == "released"
