"""A video of every prompt: names, what is done already, and the work."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from svoo.errors import ConfigError
from svoo.fleet.cluster import Cluster
from svoo.fleet.jobs import RETRIES, OnProgress, OnStep, Outcome, run_jobs
from svoo.metrics.video import ENDINGS
from svoo.plugin.calibrate import read_prompts
from svoo.plugin.request import Request
from svoo.plugin.run import (
    Generator,
    Materials,
    check_request,
    describe_request,
    read_materials,
    record_path,
    write_record,
)
from svoo.storage import locked, write_atomically

_LONGEST = 60  # letters of a prompt in a file's name
_LONGEST_NAME = 250  # bytes that any file system takes, and the dot and ending of a partial file


@dataclass(frozen=True)
class Video:
    """One video of a batch, and the record of it where it is done already."""

    request: Request
    record: dict[str, Any] | None


@dataclass(frozen=True)
class _Made:
    """What a worker returns: the file's content and what the JSON beside it says."""

    content: bytes
    record: dict[str, Any]


def list_videos(
    prompts: Path,
    folder: Path,
    settings: dict[str, Any],
    *,
    samples: int = 1,
    vbench: bool = False,
) -> list[Video]:
    """Return the videos of every prompt of a file, `samples` of each with seeds that follow one
    another, to be written to a folder.

    Names are made of the prompt and all settings; `vbench`: as VBench wants them,
    `{prompt}-{index}.mp4`. A video of the same name that was made with other settings is refused.
    """
    if samples < 1:
        raise ConfigError(f"--samples must be a whole number from 1, got {samples}")
    if folder.suffix.lower() in ENDINGS or folder.is_file():
        raise ConfigError(f"--prompts makes many videos: --out must be a folder, got {folder}")
    first = settings.get("seed", 0)
    found = []
    for prompt in dict.fromkeys(read_prompts(prompts)):
        for index in range(samples):
            request = Request(prompt=prompt, out=folder, **settings | {"seed": first + index})
            name = vbench_name(prompt, index) if vbench else video_name(request)
            found.append(_look_up(replace(request, out=folder / name)))
    return found


def video_name(request: Request) -> str:
    """Return a file name from the prompt and, in a few letters, all settings."""
    settings = {name: str(value) for name, value in asdict(request).items() if name != "out"}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    words = re.sub(r"\W+", "-", request.prompt.lower(), flags=re.ASCII).strip("-")
    return f"{words[:_LONGEST].rstrip('-') or 'video'}-{digest}.mp4"


def vbench_name(prompt: str, index: int) -> str:
    """Return the file name that VBench looks for; refuse a prompt that cannot be one."""
    name = f"{prompt}-{index}.mp4"
    too_long = len(f".{name}.partial".encode()) > _LONGEST_NAME
    if too_long or "/" in prompt or "\\" in prompt or prompt.startswith("."):
        why = "is too long" if too_long else "holds / or \\, or begins with a dot"
        raise ConfigError(f"--vbench names files by their prompts, and one {why}: {prompt!r}")
    return name


def _look_up(request: Request) -> Video:
    """Return a video with its record if both are there; refuse one of other settings."""
    path = record_path(request.out)
    if not (path.exists() and request.out.exists()):  # the record is written last
        return Video(request, None)
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        there = dict(record["request"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"cannot read {path}: {error!r}; remove it to make it anew") from error
    differences = [
        f"{name} {there.get(name)!r} there, {value!r} now"
        for name, value in describe_request(request).items()
        if name != "out" and there.get(name) != value
    ]
    if differences:
        raise ConfigError(
            f"{request.out} was made with other settings ({'; '.join(differences)}): choose "
            "another --out, or remove it"
        )
    return Video(request, record)


def make_videos(
    requests: Sequence[Request],
    cluster: Cluster | None = None,
    *,
    retries: int = RETRIES,
    on_progress: OnProgress | None = None,
) -> Iterator[Outcome[Request, dict[str, Any]]]:
    """Yield the record of each video, written with it by this process alone, or its error.

    The requests are of one folder and differ in prompt, seed and output. Workers need neither that
    folder nor the files that the request names.
    """
    if not requests:
        return
    for request in requests:
        check_request(request)
    first = requests[0]
    materials = read_materials(first)
    if cluster is not None:
        first = replace(first, device=cluster.choose_device(first.device))
    with locked(first.out.parent):
        for outcome in run_jobs(
            requests,
            partial(_VideoWorker, first, materials),
            cluster=cluster,
            retries=retries,
            on_progress=on_progress,
        ):
            yield _write(outcome)


class _VideoWorker:
    """Makes videos with a pipeline that is loaded once."""

    def __init__(self, first: Request, materials: Materials) -> None:
        """Load the pipeline."""
        self._generator = Generator(first, materials)

    def __call__(self, request: Request, on_step: OnStep) -> _Made:
        """Return the video of a request, made in a folder that is gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="svoo-") as folder:
            out = Path(folder, f"video{request.out.suffix}")
            record = self._generator(replace(request, out=out), on_step)
            content = out.read_bytes()
        return _Made(content, record | {"request": describe_request(request)})


def _write(outcome: Outcome[Request, _Made]) -> Outcome[Request, dict[str, Any]]:
    """Write what a worker made: the video, then the JSON that says that it is there."""
    made = outcome.result
    if made is not None:
        write_atomically(outcome.job.out, made.content)
        record = {name: value for name, value in made.record.items() if name != "summary"}
        write_record(outcome.job.out, record)
    parts = (None if made is None else made.record), outcome.error, outcome.refused
    return Outcome(outcome.index, outcome.job, *parts, outcome.attempts)
