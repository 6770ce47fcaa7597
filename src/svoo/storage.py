"""Files that are written whole or not at all, and the user's cache."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from svoo.errors import FileError


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside the file, then rename: a crash or a full disk leaves the old one as it was."""
    unfinished = path.with_name(f".{path.name}.partial")  # one name: the next try cleans up
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(data)
        with unfinished.open("r+b") as file:
            os.fsync(file.fileno())  # else a power cut may leave the name without its content
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise FileError(f"cannot write {path}: {error}") from error


def cache_folder() -> Path:
    """Return the user's folder for what svoo keeps (XDG_CACHE_HOME is where users say that caches
    go)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "svoo"


def check_writable(path: Path) -> None:
    """Refuse an output path that cannot be written, before any work is done."""
    if path.is_dir():
        raise FileError(f"cannot write {path}: it is a folder; give a file name such as video.mp4")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}") from error
