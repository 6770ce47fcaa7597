"""Run many jobs, each by itself: one that fails is told and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from svoo.errors import ConfigError, SVOOError

if TYPE_CHECKING:
    from svoo.fleet.cluster import Cluster

Job = TypeVar("Job")
Result = TypeVar("Result")

RETRIES = 2  # a crash may be the machine's; the third is the job's

OnStep = Callable[[int, int], None]  # steps of one job that are done, of how many
OnProgress = Callable[[float], None]  # jobs that are done, those under way in part
Worker = Callable[[Job, OnStep], Result]


@dataclass(frozen=True)
class Outcome(Generic[Job, Result]):
    """What became of a job: its result, or in words why there is none.

    `refused`: the library refused it (an `SVOOError`), which another try would not change.
    """

    index: int
    job: Job
    result: Result | None = None
    error: str | None = None
    refused: bool = False
    attempts: int = 1


@dataclass(frozen=True)
class Attempt(Generic[Result]):
    """One try of a job; picklable whatever was raised. `lost`: its worker died, or never began."""

    result: Result | None = None
    error: str | None = None
    refused: bool = False
    lost: bool = False

    @property
    def final(self) -> bool:
        """Whether another try would end in the same way."""
        return self.error is None or self.refused


def attempt(worker: Worker[Job, Result], job: Job, on_step: OnStep) -> Attempt[Result]:
    """Run a job; an error becomes words, but an interrupt is let through."""
    try:
        return Attempt(worker(job, on_step))
    except SVOOError as error:
        return Attempt(error=str(error), refused=True)
    except Exception as error:  # noqa: BLE001 (whatever it is: the other jobs go on)
        return Attempt(error=describe(error))


def describe(error: BaseException) -> str:
    """Return an error's kind and its first line."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def run_jobs(
    jobs: Sequence[Job],
    make_worker: Callable[[], Worker[Job, Result]],
    *,
    cluster: Cluster | None = None,
    retries: int = RETRIES,
    on_progress: OnProgress | None = None,
) -> Iterator[Outcome[Job, Result]]:
    """Yield what becomes of each job, in the order in which they end.

    `make_worker()` loads what all jobs need (a pipeline) and returns `worker(job, on_step)`. It is
    called once here or, with a `cluster` (see `open_cluster`), once in each of its workers; then
    it, the jobs and their results are pickled. A job that crashes, or whose worker dies, is tried
    again at most `retries` times. `on_progress(done)` counts jobs, with those under way in part.
    What `make_worker` refuses is raised, and so is what refuses every job.
    """
    if retries < 0:
        raise ConfigError(f"retries must be a whole number from 0, got {retries}")
    if not jobs:
        return
    tell = on_progress or (lambda _done: None)
    if cluster is None:
        outcomes = _run_here(jobs, make_worker(), retries, tell)
    else:
        outcomes = cluster.run_jobs(jobs, make_worker, retries, tell)
    refused = 0
    for outcome in outcomes:
        refused += outcome.refused
        if refused == len(jobs):
            raise ConfigError(outcome.error)
        yield outcome


def _run_here(
    jobs: Sequence[Job], worker: Worker[Job, Result], retries: int, tell: OnProgress
) -> Iterator[Outcome[Job, Result]]:
    """Run the jobs one after the other in this process."""
    for index, job in enumerate(jobs):

        def on_step(done: int, steps: int, before: int = index) -> None:
            tell(before + done / max(1, steps))

        number, found = 1, attempt(worker, job, on_step)
        while not found.final and number <= retries:
            number, found = number + 1, attempt(worker, job, on_step)
        tell(index + 1)
        yield Outcome(index, job, found.result, found.error, found.refused, number)
