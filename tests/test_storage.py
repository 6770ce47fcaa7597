import os
from pathlib import Path
from typing import Any

import pytest

from svoo.errors import FileError
from svoo.storage import check_writable, write_atomically


def test_a_failed_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(FileError, match="cannot write"):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["f"]


def test_the_content_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "f", []

    def sync(_file: int) -> None:
        synced.append((tmp_path / ".f.partial").read_bytes())
        assert not path.exists()

    monkeypatch.setattr(os, "fsync", sync)
    write_atomically(path, b"new")
    assert synced == [b"new"] and path.read_bytes() == b"new"


def test_folders_are_made_and_the_old_file_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "f"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [file.name for file in path.parent.iterdir()] == ["f"]


def test_what_cannot_be_written_is_refused_before_work(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "folder" / "f")
    with pytest.raises(FileError, match="it is a folder"):
        check_writable(tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError, match="cannot write"):
        check_writable(tmp_path / "file" / "f")
