"""Running studies: what is in the file already is not made again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from svoo.errors import ConfigError
from svoo.kernels.cpp.build import why_no_library
from svoo.metrics.scores import find_scorer
from svoo.plugin.calibrate import MINI_PROMPTS, read_inputs, read_prompts
from svoo.plugin.machine import describe_commit, describe_machine
from svoo.plugin.request import Request
from svoo.studies.base import Job, Skipped, Study
from svoo.studies.lab import Lab
from svoo.studies.pipelines import Pipelines
from svoo.studies.results import Results, continue_results, read_results
from svoo.studies.scale import choose_scale
from svoo.studies.settings import check_methods

PROMPTS = Path(__file__).parent / "prompts.txt"
RESULTS = "results.jsonl"

Progress = Callable[[str, float, float], None]


@dataclass(frozen=True)
class Order:
    """What is to be studied: the model and sizes of `request`, on prompts (None: the package's
    own held-out ones) and, for image to video, pictures."""

    request: Request
    out: Path
    prompts: Path | None = None
    images: Path | None = None
    count: int | None = None
    quick: bool = False
    methods: Sequence[str] | None = None


def read_study_inputs(order: Order) -> list[dict[str, Any]]:
    """Read the inputs; refuse prompts that the embedded model's profile was measured on."""
    if order.prompts is None and order.request.model != "mini":
        raise ConfigError(
            f"there are no prompts for {order.request.model}: give --prompts FILE, one per line"
        )
    path = order.prompts or PROMPTS
    texts = read_prompts(path)
    scale = choose_scale(order.request, quick=order.quick)
    count = order.count
    if count is None:
        # A file of one's own is taken whole.
        count = min(len(texts), scale.prompts) if order.prompts is None or order.quick else None
    inputs = read_inputs(path, order.images, count)
    if order.request.model == "mini":
        chosen_on = set(read_prompts(MINI_PROMPTS))
        for entry in inputs:
            if entry["prompt"] in chosen_on:
                raise ConfigError(
                    f"{entry['prompt']!r} is one of the prompts that the embedded model's profile "
                    "was measured on: studies take others"
                )
    return inputs


@contextmanager
def open_lab(order: Order) -> Iterator[Lab]:
    """Check an order, load the model, and hold the file of results while studies run."""
    check_methods(order.methods or ())
    inputs = read_study_inputs(order)
    path = order.out / RESULTS
    if path.exists():
        read_results(path)  # one that cannot be continued is refused before the model is loaded
    pipelines = Pipelines(order.request)
    if pipelines.needs_image() and order.images is None:
        raise ConfigError(f"{pipelines.name} makes video from an image: give --images FOLDER")
    with continue_results(path, _describe(order, pipelines)) as results:
        lab, facts = make_lab(order, inputs, pipelines, results)
        results.begin_session(facts)
        yield lab


def make_lab(
    order: Order, inputs: Sequence[Mapping[str, Any]], pipelines: Pipelines, results: Results
) -> tuple[Lab, dict[str, Any]]:
    """Return a laboratory on this machine, and the provenance of what it finds."""
    machine = describe_machine()
    scorer, why_not = (None, ["not with --quick"]) if order.quick else find_scorer()
    lab = Lab(
        pipelines,
        inputs,
        choose_scale(order.request, quick=order.quick),
        results,
        machine=name_machine(machine),
        backend=_choose_backend(machine),
        seed=order.request.seed,
        methods=order.methods,
        scorer=scorer,
    )
    facts = {
        "machine": machine,
        "commit": describe_commit(),
        "load": round(os.getloadavg()[0], 2),
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "prompts": [entry["prompt"] for entry in inputs],
        "quick": order.quick,
        "scores": list(why_not),
    }
    return lab, facts


def _describe(order: Order, pipelines: Pipelines) -> dict[str, Any]:
    """Return what all figures of a file share."""
    request, scale = order.request, choose_scale(order.request, quick=order.quick)
    return {
        "model": pipelines.name,
        "weights": pipelines.weights(),
        "large": str(scale.large),
        "small": str(scale.small),
        "steps": scale.steps,
        "seed": request.seed,
        "guidance": request.guidance,
        "negative_prompt": request.negative_prompt,
        "dtype": request.dtype,
        "lora": None if request.lora is None else Path(request.lora).name,
    }


def name_machine(machine: Mapping[str, Any]) -> str:
    """Return what tells machines apart whose times must not be mixed."""
    names = ("processor", "instructions", "threads", "device")
    return ", ".join(str(machine[name]) for name in names)


def _choose_backend(machine: Mapping[str, Any]) -> str:
    """Return the one backend that all methods run through."""
    on_cpu = machine["device"] == "cpu"
    return "cpp" if on_cpu and why_no_library() is None else "auto"


def pending(studies: Sequence[Study], lab: Lab) -> list[tuple[Study, Job]]:
    """Return what is not in the file yet."""
    planned = [(study, job) for study in studies for job in study.jobs(lab)]
    return [
        (study, job) for study, job in planned if lab.results.find(study.name, job.key) is None
    ]


def run_studies(
    todo: Sequence[tuple[Study, Job]], lab: Lab, progress: Progress | None = None
) -> list[str]:
    """Make what is `pending`; return why parts were left out.

    `progress(study, done, total)` is told before each job, in units of cost.
    """
    total, done = sum(job.cost for _, job in todo), 0.0
    left_out = []
    for study, job in todo:
        if progress is not None:
            progress(study.name, done, total)
        try:
            found = job.make()
        except Skipped as why:
            left_out.append(f"{study.name}: {why}")
            lab.results.add("skipped", f"{study.name} | {job.key}", {"why": str(why)})
        else:
            lab.results.add(study.name, job.key, found)
        done += job.cost
    return left_out
