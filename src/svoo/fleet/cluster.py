"""A Ray cluster as a pool of workers: each loads a pipeline once; one that dies is replaced."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from svoo.errors import ConfigError, SVOOError
from svoo.fleet.jobs import Attempt, Job, OnProgress, Outcome, Result, Worker, attempt, describe

ANY = "any"  # the cluster that runs here (or that RAY_ADDRESS names), else one of our own
LOCAL = "local"  # one of our own, on this machine
_CPUS = 4  # of a worker, where there is no GPU
_PATIENCE = 5.0  # seconds for an address to answer
_STORE = 256 << 20  # bytes of shared memory of a cluster of our own: results are small files
_TICK = 0.5  # seconds between looks at the progress


class WorkersDieError(SVOOError, RuntimeError):
    """Workers end before their jobs do, again and again."""


@contextmanager
def open_cluster(
    address: str | None, *, workers: int | None = None, use_gpus: bool = True
) -> Iterator[Cluster | None]:
    """Give the cluster at an address, or None (jobs run in this process) for None.

    `address` is host:port, ray://host:port, "auto" (the cluster that runs here), "local" (a new
    one on this machine), or "any" (the one that runs here if there is one, else a new one).
    `workers`: how many at once; None: one per GPU, or per four CPUs where there is no GPU or
    `use_gpus` is false.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers must be a whole number from 1, got {workers}")
    if address is None:
        if workers is not None:
            raise ConfigError("--workers needs --ray: without it there is one, this process")
        yield None
        return
    ray = _connect(address)
    try:
        with _quiet(ray):
            yield _share(ray, workers, use_gpus=use_gpus)
    finally:
        ray.shutdown()


@contextmanager
def _quiet(ray: Any) -> Iterator[None]:  # noqa: ANN401 (a module)
    """Keep what Ray prints of dead workers out of the output, where results go as JSON: such a
    death is told as the error of its job. `log_to_driver` does not reach it."""
    inner = ray._private.worker
    prints = getattr(inner, "print_to_stdstream", None)
    if prints is not None:
        inner.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        if prints is not None:
            inner.print_to_stdstream = prints


def _connect(address: str) -> Any:  # noqa: ANN401 (the module ray, which carries few types)
    """Return ray, connected; refuse an address that does not answer, in seconds."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--ray needs Ray: pip install 'svoo[fleet]'") from error
    options: dict[str, Any] = {
        "log_to_driver": False,
        "configure_logging": False,
        "logging_level": "error",
    }
    if address in (LOCAL, ANY):
        # Counts for a cluster that is started here, which then tells nobody that it runs.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options |= {"include_dashboard": False, "object_store_memory": _STORE}
    if address not in (LOCAL, ANY, "auto"):
        _check_answers(address)
    try:
        if address == ANY:
            ray.init(address="auto", **_without_start(options))
        else:
            ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        if address == ANY:
            ray.init(address=LOCAL, **options)
        else:
            raise ConfigError(
                f"--ray {address}: no Ray cluster can be used there: {describe(error)} (one that "
                "asks for a token needs RAY_AUTH_MODE=token here too)"
            ) from error
    return ray


def _without_start(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a connection, without those of a start."""
    started = ("include_dashboard", "object_store_memory")
    return {name: value for name, value in options.items() if name not in started}


def _check_answers(address: str) -> None:
    """Refuse an address that is none, or where nobody listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"--ray takes host:port, ray://host:port, auto or local, got {address!r}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
    except OSError as error:
        raise ConfigError(
            f"--ray {address} does not answer ({error}): is the cluster up (`ray status`), and "
            "can this machine reach it?"
        ) from error


def _share(ray: Any, workers: int | None, *, use_gpus: bool) -> Cluster:  # noqa: ANN401 (a module)
    """Divide a cluster between workers: a GPU each, or CPUs."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    with_gpus = [node for node in nodes if int(node.get("GPU", 0))] if use_gpus else []
    if with_gpus:
        gpus = sum(int(node["GPU"]) for node in with_gpus)
        if workers is not None and workers > gpus:
            raise ConfigError(f"--workers {workers}: the cluster has {gpus} GPUs, one for each")
        beside = min(node.get("CPU", 0) // int(node["GPU"]) for node in with_gpus)
        return Cluster(workers or gpus, {"num_gpus": 1, "num_cpus": min(1, int(beside))})
    cpus = sum(node.get("CPU", 0) for node in nodes)
    if not cpus:
        raise ConfigError("the Ray cluster has neither GPUs nor CPUs")
    count = workers or max(1, int(cpus) // _CPUS)
    largest = max(node.get("CPU", 0) for node in nodes)
    each = min(largest, cpus / count)
    each = int(each) or each * 0.99
    # A worker fits on one machine, and one that fits on none would be waited for without end.
    while sum(node.get("CPU", 0) // each for node in nodes) < count:
        each = each - 1 if each > 1 else each / 2
    return Cluster(count, {"num_cpus": each})


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that is connected: `workers` at once, each with its `resources`."""

    workers: int
    resources: dict[str, float]

    def choose_device(self, asked: str | None) -> str | None:
        """Return where a worker runs, given what --device says; refuse a card by its number."""
        if asked not in (None, "cpu", "cuda"):
            raise ConfigError(f"--device {asked}: with --ray it is cuda (Ray says which) or cpu")
        # By name, so that a worker whose torch cannot use its GPU says so.
        return "cuda" if asked is None and "num_gpus" in self.resources else asked

    def run_jobs(
        self,
        jobs: Sequence[Job],
        make_worker: Callable[[], Worker[Job, Result]],
        retries: int,
        tell: OnProgress,
    ) -> Iterator[Outcome[Job, Result]]:
        """Yield what becomes of each job; see `svoo.fleet.jobs.run_jobs`."""
        pool = _Pool(self, make_worker)
        waiting = deque((index, 1) for index in range(len(jobs)))
        lost = 0  # workers one after the other, with no job between them that ended
        try:
            while waiting or pool.running:
                while waiting and len(pool.running) < self.workers:
                    index, number = waiting.popleft()
                    pool.start(index, jobs[index], number)
                for index, number, found in pool.wait():
                    lost = lost + 1 if found.lost else 0
                    if lost > self.workers * (retries + 1):
                        raise WorkersDieError(f"workers end before their jobs: {found.error}")
                    if not found.final and number <= retries:
                        waiting.append((index, number + 1))
                        continue
                    parts = found.result, found.error, found.refused, number
                    yield Outcome(index, jobs[index], *parts)
                ended = len(jobs) - len(waiting) - len(pool.running)
                tell(ended + pool.under_way())
        finally:
            pool.close()


class _Pool:
    """The actors of a run, idle or with a job."""

    def __init__(self, cluster: Cluster, make_worker: Callable[[], Any]) -> None:
        """Start no actor yet."""
        import ray

        self._ray = ray
        self._resources = cluster.resources
        self._make_worker = ray.put(make_worker)  # sent once to each machine
        self._board = ray.remote(_Board).options(num_cpus=0).remote()
        self._idle: list[Any] = []
        self.running: dict[Any, tuple[Any, int, int]] = {}

    def start(self, index: int, job: object, number: int) -> None:
        """Give a job to an actor, a new one if none is idle."""
        if self._idle:
            actor = self._idle.pop()
        else:
            made = self._ray.remote(_Actor).options(**self._resources)
            actor = made.remote(self._make_worker, self._board)
        self.running[actor.run.remote(index, job)] = actor, index, number

    def wait(self) -> Iterator[tuple[int, int, Attempt[Any]]]:
        """Yield index, number of the try, and outcome of what has ended, waiting a moment."""
        ready, _ = self._ray.wait(list(self.running), timeout=_TICK)
        for reference in ready:
            actor, index, number = self.running.pop(reference)
            try:
                found, cannot_start = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                error_text = f"its worker died ({describe(error)})"
                yield index, number, Attempt(error=error_text, lost=True)
                continue
            if cannot_start is not None:
                raise cannot_start
            self._idle.append(actor)
            yield index, number, found

    def under_way(self) -> float:
        """Return how much of the running jobs is done, in jobs."""
        shares: dict[int, float] = {}
        with suppress(self._ray.exceptions.RayError):  # a bar is not worth an error
            shares = self._ray.get(self._board.read.remote(), timeout=_TICK)
        return sum(shares.get(index, 0.0) for _, index, _ in self.running.values())

    def close(self) -> None:
        """End the actors, also those that are at work."""
        actors = [*self._idle, *(actor for actor, _, _ in self.running.values())]
        for actor in (*actors, self._board):
            self._ray.kill(actor)


class _Actor:
    """A worker in a process of its own; it loads at its first job."""

    def __init__(self, make_worker: Callable[[], Worker[Any, Any]], board: Any) -> None:  # noqa: ANN401
        """Keep how to load, and whom to tell of progress."""
        self._make_worker = make_worker
        self._board = board
        self._worker: Worker[Any, Any] | None = None

    def run(self, index: int, job: object) -> tuple[Attempt[Any] | None, SVOOError | None]:
        """Return what became of a job, or what refuses every job."""

        def on_step(done: int, steps: int) -> None:
            self._board.note.remote(index, done / max(1, steps))

        if self._worker is None:
            try:
                self._worker = self._make_worker()
            except SVOOError as error:
                return None, error
            except Exception as error:  # noqa: BLE001 (told as that of the job, and tried again)
                return Attempt(error=f"cannot start: {describe(error)}", lost=True), None
        return attempt(self._worker, job, on_step), None


class _Board:
    """Where actors write how far their jobs are."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._shares: dict[int, float] = {}

    def note(self, index: int, share: float) -> None:
        """Note the share of a job that is done."""
        self._shares[index] = share

    def read(self) -> dict[int, float]:
        """Return the shares of all jobs so far."""
        return self._shares
