import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from svoo import Profile
from svoo.errors import ConfigError, FileError, ProfileError
from svoo.metrics.video import check_video_path, read_video
from svoo.storage import atomically, cache_folder, check_writable, locked, write_atomically


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
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileError, match="it is a folder"):
        check_writable(tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError, match="cannot write"):
        check_writable(tmp_path / "file" / "f")


def test_no_room_and_no_rights_are_found_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(FileError, match="may need .* bytes, and .* are free there"):
        check_writable(tmp_path / "f", needed=free * 2)

    def refuse(**_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(FileError, match="cannot write .*Permission denied"):
        check_writable(tmp_path / "new" / "f")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomically(path) as unfinished:
        unfinished.write_bytes(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["f"]


HOLDER = """
import sys
from pathlib import Path
from svoo.storage import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "f")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(FileError, match=r"another svoo is writing .*choose another --out"):
            locked(Path("f")).__enter__()
        with locked(tmp_path / "g"):
            pass
        holder.communicate()
    with locked(Path("f")):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_the_cache_is_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "svoo"


def test_what_nobody_may_look_into_is_refused_or_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an ordinary user meets /root; who runs the tests may be root."""
    closed = tmp_path / "root"
    ask = Path.stat

    def refuse(path: Path, **how: Any) -> Any:
        if closed in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return ask(path, **how)

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(closed / "cache"))
    assert cache_folder().parent == tmp_path
    for path in (closed / "v.mp4", closed / "pictures"):
        with pytest.raises(FileError, match="cannot write .*Permission denied"):
            check_video_path(path)
    with pytest.raises(ConfigError, match="cannot read the video"):
        read_video(closed / "v.mp4")
    with pytest.raises(ProfileError, match="cannot read the profile"):
        Profile.load(closed / "p.safetensors")


def test_without_a_home_the_cache_is_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "nobody"))
    folder = cache_folder()
    assert folder.parent == tmp_path and stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    with pytest.raises(FileError, match="is not private to this user"):
        cache_folder()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(FileError, match="is not private to this user"):
        cache_folder()
