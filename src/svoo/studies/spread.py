"""Studies over many workers: each makes one study of one prompt and sends back its lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from svoo.fleet.cluster import Cluster
from svoo.fleet.jobs import OnStep, run_jobs
from svoo.studies.base import Job, Study
from svoo.studies.lab import Lab
from svoo.studies.pipelines import Pipelines
from svoo.studies.results import Record, Results
from svoo.studies.run import (
    Done,
    Order,
    Progress,
    make_lab,
    pending,
    read_study_inputs,
    run_studies,
)
from svoo.studies.table import find_studies

_NEVER_SENT = ("session", "examples")  # the one is not needed, the other is large


@dataclass(frozen=True)
class Made:
    """The records that a part adds, and what of it failed."""

    records: list[Record]
    failed: list[str]


@dataclass(frozen=True)
class Part:
    """One study of one prompt, and the records that are there already."""

    study: str
    prompt: str
    cost: float
    known: list[Record]


def spread_studies(
    todo: Sequence[tuple[Study, Job]],
    lab: Lab,
    order: Order,
    cluster: Cluster | None,
    progress: Progress | None = None,
    *,
    complain: Callable[[str], None] | None = None,
) -> Done:
    """Make what is pending on a cluster (None: in this process, part by part); the file is
    written here alone. What fails is told to `complain` at once, and the others go on."""
    here = [(study, job) for study, job in todo if not job.prompt]
    begun = run_studies(here, lab, complain=complain)
    left_out, failed = begun.left_out, begun.failed
    parts = _divide(todo, lab.results)
    total, done = sum(part.cost for part in parts), 0.0
    first = order
    if cluster is not None:
        device = cluster.choose_device(order.request.device)
        first = replace(order, request=replace(order.request, device=device))
    for outcome in run_jobs(
        parts, partial(StudyWorker, first, lab.results.about), cluster=cluster
    ):
        part = outcome.job
        made = outcome.result or Made([], [f"{part.study}, {part.prompt!r}: {outcome.error}"])
        failed += made.failed
        if complain is not None:
            for reason in made.failed:
                complain(f"failed: {reason}")
        known = {(record.kind, record.key) for record in part.known}
        for record in made.records:
            # What it knew and made nevertheless was made again; else the first one stands.
            again = (record.kind, record.key) in known
            if again or lab.results.find(record.kind, record.key) is None:
                lab.results.add(record.kind, record.key, record.data, record.seconds)
            if record.kind == "skipped":
                left_out.append(f"{part.study}: {record.data['why']}")
        done += part.cost
        if progress is not None:
            progress(part.study, done, total)
    return Done(left_out, failed)


def _divide(todo: Sequence[tuple[Study, Job]], results: Results) -> list[Part]:
    """Return a part for each study and prompt, in the order of the jobs."""
    costs: dict[tuple[str, str], float] = {}
    for study, job in todo:
        if job.prompt:
            part = study.name, job.prompt
            costs[part] = costs.get(part, 0.0) + job.cost
    known = [record for record in results.records if record.kind not in _NEVER_SENT]
    return [Part(*part, cost, known) for part, cost in costs.items()]


class StudyWorker:
    """Makes parts with a model that is loaded once."""

    def __init__(self, order: Order, about: dict[str, Any]) -> None:
        """Load the model."""
        inputs, pipelines = read_study_inputs(order), Pipelines(order.request)
        self._about = about
        self._lab, _ = make_lab(order, inputs, pipelines, Results(about))

    def __call__(self, part: Part, on_step: OnStep) -> Made:
        """Make what is left of a part."""
        lab = self._lab
        lab.results = Results(self._about, list(part.known))
        lab.on_step = on_step
        mine = [
            (study, job)
            for study, job in pending(find_studies([part.study]), lab)
            if job.prompt == part.prompt
        ]
        done = run_studies(mine, lab)
        return Made(lab.results.records[len(part.known) :], done.failed)
