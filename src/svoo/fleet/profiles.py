"""A profile of many inputs, recorded one by one by any number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from svoo.errors import ProfileError
from svoo.fleet.cluster import Cluster
from svoo.fleet.jobs import RETRIES, OnProgress, OnStep, Outcome, run_jobs
from svoo.plugin.load import check_takes, open_pipeline
from svoo.plugin.provenance import describe_measuring
from svoo.plugin.record import RecordConfig, Recorder
from svoo.plugin.request import Request, call_sizes, known_model
from svoo.plugin.store import Store
from svoo.profiles.profile import Profile
from svoo.storage import check_writable, locked

Inputs = Sequence[Mapping[str, Any]]
_DESCRIBE = -1  # instead of an input: all are there, and only the pipeline tells its weights


@dataclass(frozen=True)
class Recording:
    """A profile of all inputs; None if some failed: what is done stays beside the output."""

    profile: Profile | None
    failed: list[Outcome[int, Any]] = field(default_factory=list)


def record_by_name(
    request: Request,
    inputs: Inputs,
    measuring: RecordConfig,
    cluster: Cluster | None = None,
    *,
    restart: bool = False,
    retries: int = RETRIES,
    on_progress: OnProgress | None = None,
) -> Recording:
    """Record the profile that a request asks for: its model, sizes and output.

    Every input is on disk when it is done, and the file of all has the same bytes whoever recorded
    which of them, and in which order. The same request, begun again, continues; another one is
    refused unless `restart`. `on_progress(done)` counts inputs.
    """
    check_writable(request.out)
    call = call_sizes(request, known_model(request.model))
    first = request
    if cluster is not None:
        first = replace(request, device=cluster.choose_device(request.device))
    with locked(request.out):
        parts = _Parts(request.out, describe_measuring(inputs, vars(measuring), call), measuring)
        missing = parts.begin(len(inputs), restart=restart)
        done = len(inputs) - len(missing)
        failed = []
        for outcome in run_jobs(
            missing or [_DESCRIBE],
            partial(_RecordWorker, first, inputs, measuring, call),
            cluster=cluster,
            retries=retries,
            on_progress=lambda more: on_progress and on_progress(done + more),
        ):
            if outcome.result is None:
                failed.append(outcome)
            elif isinstance(outcome.result, Profile):
                parts.keep(outcome.job, outcome.result)
            else:
                parts.check(outcome.result)
        return Recording(None, failed) if failed else Recording(parts.finish(len(inputs)))


class _RecordWorker:
    """Records inputs with a pipeline that is loaded once."""

    def __init__(
        self, request: Request, inputs: Inputs, measuring: RecordConfig, call: Mapping[str, Any]
    ) -> None:
        """Load the pipeline."""
        pipe = open_pipeline(request, known_model(request.model))
        check_takes(request, pipe, image="image" in inputs[0])
        self._recorder = Recorder(pipe, inputs, measuring, call)

    def __call__(self, index: int, on_step: OnStep) -> Profile | dict[str, str]:
        """Return the profile of one input, or what decides the recording of all."""
        return self._recorder.request if index == _DESCRIBE else self._recorder(index, on_step)


class _Parts:
    """A file for each input that is done, in a folder beside the profile of all."""

    def __init__(self, out: Path, facts: Mapping[str, str], measuring: RecordConfig) -> None:
        """Keep the recording that the facts describe."""
        self._store = Store(out, facts)
        self._folder = out.with_name(out.name + ".parts")
        self._measuring = measuring
        self._earlier: Profile | None = None
        self._found: dict[int, Profile] = {}

    def begin(self, count: int, *, restart: bool) -> list[int]:
        """Read what earlier runs of the same request have done, and return what is missing."""
        self._earlier = self._store.begin(restart=restart)
        first = 0 if self._earlier is None else self._measuring.count_inputs(self._earlier)
        for path in sorted(self._folder.glob("*.safetensors")):
            try:
                self._found[int(path.stem)] = self._store.read(path)
            except ProfileError:
                if not restart:
                    raise
                path.unlink()
        return [index for index in range(first, count) if index not in self._found]

    def keep(self, index: int, profile: Profile) -> None:
        """Save the profile of an input."""
        self.check(profile.provenance)
        self._found[index] = profile
        profile.save(self._folder / f"{index:05d}.safetensors")

    def check(self, facts: Mapping[str, str]) -> None:
        """Refuse what is there if it is of other weights, which only the pipeline tells."""
        earlier = () if self._earlier is None else (self._earlier,)
        for other in (*earlier, *self._found.values()):
            self._store.check(other, self._folder, facts)

    def finish(self, count: int) -> Profile:
        """Write the profile of all inputs, in their order, and remove the parts."""
        earlier = [] if self._earlier is None else [self._earlier]
        rest = [self._found[index] for index in range(count) if index in self._found]
        found = Profile.merge([*earlier, *rest])
        self._store.finish(found)
        for path in self._folder.glob("*.safetensors"):
            path.unlink()
        with suppress(OSError):  # it was never there, or somebody keeps a file in it
            self._folder.rmdir()
        return found
