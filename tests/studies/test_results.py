import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import studying
from hypothesis import given
from hypothesis import strategies as st

from svoo.errors import ConfigError, FileError
from svoo.studies.results import FORMAT, continue_results, read_results


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "results.jsonl"
    with continue_results(path, studying.ABOUT) as results:
        results.begin_session({"commit": "c"})
        for number in range(3):
            results.add("layers", f"key {number}", {"density": [0.5, number], "text": "ä\n"})
    return path.read_bytes()


def test_what_was_added_is_read_back(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(whole)
    results = read_results(path)
    assert results.about == studying.ABOUT
    assert results.find("layers", "key 2") == {"density": [0.5, 2], "text": "ä\n"}
    assert results.find("layers", "key 9") is None and results.find("steps", "key 2") is None
    assert list(results.of_kind("layers")) == ["key 0", "key 1", "key 2"]
    assert [record.session for record in results.records] == [0, 0, 0, 0]


@dataclass(frozen=True)
class Row:
    prompt: str
    value: int


def test_typed_rows_are_the_latest_of_each_prompt_and_of_todays_fields() -> None:
    results = studying.empty()
    results.add("layers", "a | old", {"prompt": "a", "value": 1})
    results.add("layers", "b", {"rows": [{"prompt": "b", "value": n} for n in (2, 3)]})
    results.add("layers", "c", {"prompt": "c", "density": 0.5})  # of another rule
    results.add("layers", "d", {"rows": []})
    results.add("layers", "a | new", {"prompt": "a", "value": 4})
    assert results.rows_of("layers", Row) == [Row("a", 4), Row("b", 2), Row("b", 3)]
    assert results.rows_of("steps", Row) == []


@given(cut=st.integers(0, 10_000))
def test_killed_at_any_byte_nothing_whole_is_lost(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    header = whole.index(b"\n") + 1
    end = header + cut % (len(whole) - header + 1)
    path = tmp_path_factory.mktemp("cut") / "results.jsonl"
    path.write_bytes(whole[:end])
    lines = whole[:end].count(b"\n") - 1
    with continue_results(path, studying.ABOUT) as results:
        assert len(results.records) == lines
        results.add("layers", "after", {"x": 1})
    again = read_results(path)
    assert len(again.records) == lines + 1
    assert again.find("layers", "after") == {"x": 1}


def test_the_latest_of_a_key_counts(tmp_path: Path) -> None:
    with continue_results(tmp_path / "r.jsonl", studying.ABOUT) as results:
        results.add("run", "a", {"x": 1})
        results.add("run", "a", {"x": (2, 3)})
        assert results.find("run", "a") == {"x": [2, 3]}  # as it would be read back
        assert results.of_kind("run") == {"a": {"x": [2, 3]}}
        with pytest.raises(ValueError, match="JSON"):
            results.add("run", "b", {"x": float("nan")})
    assert len(read_results(tmp_path / "r.jsonl").records) == 2


def test_a_write_that_fails_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError("no room")

    path = tmp_path / "results.jsonl"
    with continue_results(path, studying.ABOUT) as results:
        results.add("layers", "a", {"x": 1})
        before = path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr("svoo.studies.results._as_line", lambda _: b'{"kind":"lay')
            patch.setattr("os.fsync", full)
            with pytest.raises(OSError, match="no room"):
                results.add("layers", "b", {"x": 2})
        assert path.read_bytes() == before
        results.add("layers", "c", {"x": 3})
    assert set(read_results(path).of_kind("layers")) == {"a", "c"}


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with (
        continue_results(path, studying.ABOUT),
        pytest.raises(FileError, match="another svoo is writing"),
        continue_results(path, studying.ABOUT),
    ):
        pass


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no results"),
        (b"no json\n", "holds no results"),
        (b"[1]\n", "holds no results"),
        (b'{"svoo study": 99, "about": {}}\n', f"version 99, this svoo has version {FORMAT}"),
        (b'{"svoo study": %d, "about": {}}\n{"kind": 1}\n' % FORMAT, "holds no results"),
        (b'{"svoo study": %d, "about": {}}\n[]\n' % FORMAT, "holds no results"),
    ],
)
def test_other_files_are_refused_and_left(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message), continue_results(path, studying.ABOUT):
        pass
    assert path.read_bytes() == content


def test_another_run_is_refused_with_what_differs(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(whole)
    other = {**studying.ABOUT, "steps": 50}
    with pytest.raises(ConfigError, match="steps: 4 there, 50 now"), continue_results(path, other):
        pass
    assert path.read_bytes() == whole


def test_figures_of_other_weights_are_never_mixed(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(whole)
    other = {**studying.ABOUT, "weights": "0123"}
    message = r"must not be mixed with these:\n  weights: w there, 0123 now\nchoose another folder"
    with pytest.raises(ConfigError, match=message), continue_results(path, other):
        pass
    assert path.read_bytes() == whole


def test_no_results_say_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="svoo study all"):
        read_results(tmp_path / "results.jsonl")


def test_each_line_is_json_without_spaces(whole: bytes) -> None:
    lines = whole.splitlines()
    assert json.loads(lines[0])["svoo study"] == FORMAT
    assert all(json.loads(line)["kind"] for line in lines[1:])
