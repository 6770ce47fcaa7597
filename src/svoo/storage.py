"""Files: written whole or not at all, locked, checked before work; and the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from svoo.errors import FileError

LEAST_ROOM = 1 << 20  # bytes that any output is taken to need


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Give a path beside the file to write to, and rename it when that is done.

    A crash, an interrupt or a full disk leaves the old file as it was.
    """
    unfinished = path.with_name(f".{path.name}.partial")  # one name: the next try cleans up
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield unfinished
        with unfinished.open("r+b") as file:
            os.fsync(file.fileno())  # else a power cut may leave the name without its content
        unfinished.replace(path)
    except BaseException as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, FileError):
            raise FileError(f"cannot write {path}: {error}") from error
        raise


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; see `atomically`."""
    with atomically(path) as unfinished:
        unfinished.write_bytes(data)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an output file for this process; refuse at once where another one holds it.

    The lock lies in the user's cache, so that nothing is left beside the output.
    """
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    folder = cache_folder() / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{name}.lock", blocking=False)
        lock.acquire()
    except Timeout as error:
        raise FileError(
            f"another svoo is writing {path}: wait until it has ended, or choose another --out"
        ) from error
    except OSError as error:
        raise FileError(f"cannot lock {path} with a file in {folder}: {error}") from error
    try:
        yield
    finally:
        lock.release()


def cache_folder() -> Path:
    """Return the user's folder for what svoo keeps: that of the platform (XDG_CACHE_HOME is
    honoured), or a private one for temporary files where the user has no home."""
    try:
        folder = user_cache_path("svoo", appauthor=False)
    except RuntimeError:  # no HOME, and nobody of this number in the list of users
        return _private_folder()
    return folder if folder.is_absolute() and _can_be_made(folder) else _private_folder()


def _can_be_made(folder: Path) -> bool:
    try:
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except OSError:  # a home that this user may not even look into
        return False


def _private_folder() -> Path:
    """Return a folder for this user alone; refuse one that somebody else may have planted."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"svoo-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        reason = f"there is no home folder, and {folder} cannot be made: {error}"
        raise FileError(reason) from error
    private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
    if hasattr(os, "getuid") and not (private and found.st_uid == user):
        raise FileError(
            f"there is no home folder, and {folder} is not private to this user: remove it, or "
            "set XDG_CACHE_HOME"
        )
    return folder


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder, as far as this user may know."""
    try:
        return path.is_dir()
    except OSError:
        return False


def check_writable(path: Path, needed: int = LEAST_ROOM, *, folder: bool = False) -> None:
    """Refuse an output file (or `folder`, which is written beside the earlier one) that cannot be
    written, or has no room for `needed` bytes, before any work is done."""
    if not folder and is_folder(path):
        raise FileError(f"cannot write {path}: it is a folder; give a file name such as video.mp4")
    made: list[Path] = []
    try:
        made += [parent for parent in path.parents if not parent.exists()]
        path.with_name(f".{path.name}.partial").exists()  # says if the name is too long
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}") from error
    finally:
        for parent in made:  # what refuses later leaves nothing behind, not even a folder
            with suppress(OSError):
                parent.rmdir()
    if free < needed:
        raise FileError(
            f"cannot write {path}: it may need {needed:,} bytes, and {free:,} are free there"
        )
