import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ui_fakes import settings

from svoo.app.ui.jobs import Job
from svoo.app.ui.store import Store
from svoo.errors import FileError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "jobs")


def ended(store: Store, name: str = "completed") -> Job:
    kept = Job.new("fake", settings())
    store.add(kept, b"a picture")
    (store.folder_of(kept) / "video.mp4").write_bytes(b"a video")
    kept.status, kept.completed_at = name, 5  # type: ignore[assignment]
    store.save(kept)
    return kept


def test_a_finished_job_survives(store: Store) -> None:
    kept = ended(store)
    found = Store(store.folder).load()
    assert found == [kept]
    assert store.find(kept, "video") == store.folder_of(kept) / "video.mp4"
    assert store.find(kept, "picture") is not None and store.find(kept, "density") is None


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_what_was_not_ended_has_failed_and_leaves_nothing_half(store: Store, status: str) -> None:
    kept = ended(store, status)
    (store.folder_of(kept) / ".video.mp4.partial").write_bytes(b"half")
    for _ in range(2):  # and stays so
        found = Store(store.folder).load()[0]
        assert found.status == "failed" and found.error is not None
        assert found.error[0] == "interrupted" and "make it again" in found.error[1]
    names = {path.name for path in store.folder_of(kept).iterdir()}
    assert names == {"job.json", "picture.png"}


def test_oldest_first(store: Store) -> None:
    jobs = [replace(ended(store), created_at=time) for time in (3, 1, 2)]
    for kept in jobs:
        store.save(kept)
    assert [kept.created_at for kept in store.load()] == [1, 2, 3]


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": "\udfff"},
        {"fps": 0},
        {"fps": "fast"},
        {"guidance": float("nan")},
    ],
)
def test_a_record_that_cannot_be_told_does_not_take_the_list_with_it(
    store: Store, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]
) -> None:
    good, hostile = ended(store), ended(store)
    record = store.folder_of(hostile) / "job.json"
    kept = json.loads(record.read_text())
    record.write_text(json.dumps(kept | {"settings": kept["settings"] | changes}))
    with caplog.at_level(logging.WARNING):
        assert store.load() == [good]
    assert hostile.id in caplog.text and "cannot be read" in caplog.text
    assert record.exists()


def test_strange_folders_are_left_alone(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    good, damaged, moved = ended(store), ended(store), ended(store)
    (store.folder_of(damaged) / "job.json").write_text('{"id": ')
    other = json.loads((store.folder_of(moved) / "job.json").read_text()) | {"id": good.id}
    (store.folder_of(moved) / "job.json").write_text(json.dumps(other))
    (store.folder / "notes").mkdir()
    (store.folder / f"video_{'0' * 24}").symlink_to(store.folder_of(good))
    half = store.folder / f"video_{'1' * 24}"
    half.mkdir()
    with caplog.at_level(logging.WARNING):
        assert [kept.id for kept in store.load()] == [good.id]
    assert caplog.text.count("cannot be read") == 2
    assert store.folder_of(damaged).exists() and (store.folder / "notes").exists()
    assert not half.exists()  # a job without a record was never told to anybody


def test_removing_takes_everything(store: Store) -> None:
    gone = ended(store)
    store.remove(gone)
    store.remove(gone)
    store.clear(gone)
    assert list(store.folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError):
        Store(tmp_path / "file")
