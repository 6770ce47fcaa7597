"""The queue: one video at a time, in order; each can be cancelled, and none is lost."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from svoo.app.ui.jobs import CANCELLED, STOPPED, Job, without_nan
from svoo.app.ui.problems import Problem
from svoo.app.ui.settings import ModelFacts, Settings
from svoo.app.ui.store import Store
from svoo.errors import FileError, SVOOError

_LOG = logging.getLogger(__name__)
OnProgress = Callable[[str, int, int], None]  # phase, steps done, steps in all


@dataclass(frozen=True)
class Outcome:
    """What making a video took, and what to tell the user."""

    figures: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Maker(Protocol):
    """Who makes videos; `on_progress` may raise, which must stop the work."""

    facts: ModelFacts

    def check(self, settings: Settings) -> None:
        """Refuse settings that cannot be made, with an `SVOOError`."""

    def make(self, settings: Settings, folder: Path, on_progress: OnProgress) -> Outcome:
        """Write the video and what belongs to it into a folder."""


class Stopped(BaseException):
    """Raised in the denoising loop when its video is not wanted any more.

    No `Exception`, so that no pipeline takes it for one of its own.
    """


class JobQueue:
    """All jobs of a server, and the thread that works on them."""

    def __init__(self, store: Store, maker: Maker, most_waiting: int) -> None:
        """Load the jobs of earlier servers; nothing runs before `start`."""
        self._store, self._maker, self._most_waiting = store, maker, most_waiting
        self._jobs = {job.id: job for job in store.load()}
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._unwanted: tuple[str, str] | None = None  # why the running job has to stop
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="svoo-videos", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self, patience: float) -> None:
        """Let the running video end at its next step and mark what is not made as failed.

        A step that takes longer than `patience` seconds is not waited for.
        """
        with self._changed:
            self._closing = True
            self._unwanted = self._unwanted or STOPPED
            for job in self._waiting:
                self._end(job, STOPPED)
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join(patience)
        with self._changed:
            if self._running is not None and self._running.id in self._jobs:
                self._end(self._running, STOPPED)

    def add(self, settings: Settings, picture: bytes | None) -> dict[str, Any]:
        """Queue a video; refuse it where too many are waiting."""
        with self._changed:
            if self._closing:
                raise Problem(503, "closing", "the server is being stopped")
            if len(self._waiting) >= self._most_waiting:
                raise Problem(
                    429,
                    "queue_full",
                    f"{len(self._waiting)} videos are waiting already, which is the most here; "
                    "try again later",
                )
            job = Job.new(self._maker.facts.name, settings)
            try:
                self._store.add(job, picture)
            except FileError as error:
                self._store.remove(job)
                raise Problem(507, "no_room", str(error)) from error
            self._jobs[job.id] = job
            self._waiting.append(job)
            self._changed.notify_all()
            return self._describe(job)

    def get(self, name: str) -> Job:
        """Return a job by its name."""
        job = self._jobs.get(name)
        if job is None:
            raise Problem(404, "not_found", "there is no such video")
        return job

    def describe(self, name: str) -> dict[str, Any]:
        """Return how a job stands."""
        with self._changed:
            return self._describe(self.get(name))

    def describe_all(
        self, after: str | None, limit: int, *, newest_first: bool
    ) -> tuple[list[dict[str, Any]], bool]:
        """Return how some jobs stand, those after one of them, and whether there are more."""
        with self._changed:
            jobs = list(self._jobs.values())
            if newest_first:
                jobs.reverse()
            start = 0 if after is None else 1 + jobs.index(self.get(after))
            chosen = jobs[start : start + limit]
            return [self._describe(job) for job in chosen], start + limit < len(jobs)

    def cancel(self, name: str) -> dict[str, Any]:
        """Stop a job that has not ended; it stays in the history as cancelled."""
        with self._changed:
            job = self.get(name)
            if job is self._running:
                self._unwanted = CANCELLED
                job.phase = "stopping"
            elif not job.ended:
                self._waiting.remove(job)
                self._end(job, CANCELLED)
            return self._describe(job)

    def remove(self, name: str) -> None:
        """Stop a job if it has not ended, and forget it with all its files."""
        with self._changed:
            job = self.get(name)
            self.cancel(name)
            del self._jobs[name]
            if job is self._running:  # its thread removes the files, at its next step
                self._store.forget(job)
            else:
                self._store.remove(job)

    def _describe(self, job: Job) -> dict[str, Any]:
        before = self._waiting.index(job) if job.status == "queued" else None
        return job.describe(before)

    def _end(self, job: Job, why: tuple[str, str] | None) -> None:
        """Note how a job ended, on disk too; None: well."""
        if why is None:
            job.status, job.completed_at = "completed", int(time.time())
        else:
            job.fail(why)
            self._store.clear(job)
        job.phase = ""
        self._save(job)

    def _save(self, job: Job) -> None:
        """Write a job's record; a full disk must not end the queue."""
        try:
            self._store.save(job)
        except FileError:
            _LOG.exception("the record of %s cannot be written", job.id)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            why: tuple[str, str] | None = None
            try:
                outcome = self._maker.make(
                    job.settings, self._store.folder_of(job), self._reporter(job)
                )
                job.figures, job.notes = without_nan(outcome.figures), outcome.notes
            except Stopped:
                why = self._unwanted or STOPPED
            except SVOOError as error:
                why = ("generation_failed", str(error))
            except Exception as error:  # noqa: BLE001 (one video must not end the queue)
                _LOG.exception("%s failed", job.id)
                why = ("generation_failed", f"{type(error).__name__}: {error}")
            with self._changed:
                self._running = None
                if job.id in self._jobs:
                    if not job.ended:
                        self._end(job, why)
                else:
                    self._store.remove(job)

    def _next(self) -> Job | None:
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if self._closing:
                return None
            job = self._waiting.popleft()
            self._running, self._unwanted = job, None
            job.status = "in_progress"
            self._save(job)
            return job

    def _reporter(self, job: Job) -> OnProgress:
        def on_progress(phase: str, step: int, steps: int) -> None:
            with self._changed:
                if self._unwanted is not None:
                    raise Stopped
                job.progress(phase, step, steps)

        return on_progress
