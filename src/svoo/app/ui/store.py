"""Jobs on disk: a folder each, its `job.json` written last and always whole."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from svoo.app.ui.jobs import STOPPED, Job
from svoo.storage import check_writable, write_atomically

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"video_[0-9a-f]{24}")
_RECORD, PICTURE = "job.json", "picture.png"
VARIANTS = {  # what can be downloaded: its file and its type
    "video": ("video.mp4", "video/mp4"),
    "dense": ("dense.mp4", "video/mp4"),
    "thumbnail": ("thumbnail.webp", "image/webp"),
    "density": ("density.png", "image/png"),
    "picture": (PICTURE, "image/png"),
}


class Store:
    """The folder with all jobs. Names of files come from here, never from a request."""

    def __init__(self, folder: Path) -> None:
        """Keep jobs in a folder; refuse one that cannot be written."""
        check_writable(folder / _RECORD)
        self.folder = folder

    def folder_of(self, job: Job) -> Path:
        """Return where a job's files are."""
        return self.folder / job.id

    def add(self, job: Job, picture: bytes | None) -> None:
        """Write a new job."""
        if picture is not None:
            write_atomically(self.folder_of(job) / PICTURE, picture)
        self.save(job)

    def save(self, job: Job) -> None:
        """Write what is known of a job; an earlier record stays until the new one is whole."""
        text = json.dumps(job.as_dict(), indent=1) + "\n"
        write_atomically(self.folder_of(job) / _RECORD, text.encode())

    def clear(self, job: Job) -> None:
        """Remove what a job has made, so that one that failed leaves nothing half."""
        with suppress(OSError):  # somebody may have removed the folder
            for path in self.folder_of(job).iterdir():
                if path.name not in (_RECORD, PICTURE):
                    path.unlink()

    def remove(self, job: Job) -> None:
        """Remove a job and all its files; the record goes first, so that none is ever half."""
        self.forget(job)
        shutil.rmtree(self.folder_of(job), ignore_errors=True)

    def forget(self, job: Job) -> None:
        """Remove the record of a job: what lies in a folder without one goes at the next start."""
        with suppress(OSError):
            (self.folder_of(job) / _RECORD).unlink(missing_ok=True)

    def find(self, job: Job, variant: str) -> Path | None:
        """Return a finished job's file, or None where it has none of that kind."""
        path = self.folder_of(job) / VARIANTS[variant][0]
        return path if path.is_file() else None

    def load(self) -> list[Job]:
        """Return all jobs, oldest first. What an earlier server did not end has failed."""
        jobs = sorted(self._read_all(), key=lambda job: (job.created_at, job.id))
        for job in jobs:
            if not job.ended:
                job.fail(STOPPED)
                self.clear(job)
                self.save(job)
        return jobs

    def _read_all(self) -> Iterator[Job]:
        if not self.folder.is_dir():
            return
        for folder in self.folder.iterdir():
            if not _NAME.fullmatch(folder.name) or folder.is_symlink():
                continue
            record = folder / _RECORD
            if not record.exists():  # asked for or removed in the moment of a crash
                shutil.rmtree(folder, ignore_errors=True)
                continue
            try:
                job = Job.from_dict(json.loads(record.read_text()))
                if job.id != folder.name:
                    raise ValueError(f"it tells of {job.id}")
                # One job that cannot be told would take the whole list with it.
                json.dumps(job.describe(), ensure_ascii=False, allow_nan=False).encode()
            except (OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
                _LOG.warning("%s is left out, its record cannot be read: %s", folder, error)
                continue
            yield job
