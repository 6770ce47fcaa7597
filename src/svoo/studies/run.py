"""Running studies: what is in the file already is not made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from svoo.errors import ConfigError, ModelError
from svoo.fleet.jobs import describe
from svoo.kernels.cpp.build import why_no_library
from svoo.metrics.compare import LPIPS_SIDE
from svoo.metrics.lpips import Lpips
from svoo.metrics.scores import find_scorer
from svoo.plugin.calibrate import MINI_PROMPTS, read_inputs, read_prompts
from svoo.plugin.machine import describe_commit, describe_machine, name_machine
from svoo.plugin.request import Request
from svoo.studies.base import Job, Skipped, Study
from svoo.studies.forecast import Forecast
from svoo.studies.lab import Lab
from svoo.studies.pipelines import Pipelines
from svoo.studies.results import Results, continue_results, read_results
from svoo.studies.scale import Scale, choose_scale
from svoo.studies.scoring import Scoring
from svoo.studies.settings import check_methods

PROMPTS = Path(__file__).parent / "prompts.txt"
LOOKED_AT = Path(__file__).parent / "prompts_looked_at.txt"  # settings were chosen with these
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
    retime: bool = False
    timed: bool = True


@dataclass(frozen=True)
class Done:
    """What was left out and what failed, in words, and what was not begun in the time given."""

    left_out: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    not_begun: Sequence[tuple[Study, Job]] = ()


def read_study_inputs(order: Order) -> list[dict[str, Any]]:
    """Read the inputs; refuse prompts that a setting or the profile of the embedded model was
    chosen on."""
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
    inputs = read_inputs(path, order.images, count, option="--count")
    given = Counter(entry["prompt"] for entry in inputs)
    twice = next((prompt for prompt, times in given.items() if times > 1), None)
    if twice is not None:
        raise ConfigError(f"{path} has {twice!r} twice: differences are paired by prompt")
    if order.request.model == "mini":
        for chosen, what in (
            (MINI_PROMPTS, "the embedded model's profile was measured on"),
            (LOOKED_AT, "the tolerance was chosen with"),
        ):
            known = set(read_prompts(chosen))
            for entry in inputs:
                if entry["prompt"] in known:
                    raise ConfigError(
                        f"{entry['prompt']!r} is one of the prompts that {what}: studies take "
                        "others"
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
    machine, scale = describe_machine(), choose_scale(order.request, quick=order.quick)
    why_no_lpips = _why_no_lpips(scale)
    scorer, why_not = (None, ["not with --quick"]) if order.quick else find_scorer()
    lab = Lab(
        pipelines,
        inputs,
        scale,
        results,
        machine=name_machine(machine),
        backend=_choose_backend(machine),
        seed=order.request.seed,
        methods=order.methods,
        scoring=Scoring(scorer, why_no_lpips is None),
        retime=order.retime,
        timed=order.timed,
        commit=describe_commit(),
    )
    facts = {
        "machine": machine,
        "commit": describe_commit(),
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "prompts": [entry["prompt"] for entry in inputs],
        "quick": order.quick,
        "scores": [*([f"LPIPS: {why_no_lpips}"] if why_no_lpips else []), *why_not],
    }
    return lab, facts


def _why_no_lpips(scale: Scale) -> str | None:
    """Return why runs of this scale have no LPIPS, or None where they have it."""
    sizes = [size for size in (scale.large, scale.small) if size is not None]
    if any(min(size.height, size.width) < LPIPS_SIDE for size in sizes):
        return f"pictures must have at least {LPIPS_SIDE} rows and columns"
    try:
        Lpips.load()
    except ModelError as error:
        return str(error)
    return None


def _describe(order: Order, pipelines: Pipelines) -> dict[str, Any]:
    """Return what all figures of a file share."""
    request, scale = order.request, choose_scale(order.request, quick=order.quick)
    return {
        "model": pipelines.name,
        "weights": pipelines.weights(),
        "profile": pipelines.profile(),
        "large": str(scale.large),
        "small": str(scale.small),
        "steps": scale.steps,
        "seed": request.seed,
        "guidance": request.guidance,
        "negative_prompt": request.negative_prompt,
        "dtype": request.dtype,
        "lora": None if request.lora is None else Path(request.lora).name,
    }


def _choose_backend(machine: Mapping[str, Any]) -> str:
    """Return the one backend that all methods run through."""
    on_cpu = machine["device"] == "cpu"
    return "cpp" if on_cpu and why_no_library() is None else "auto"


def plan_jobs(studies: Sequence[Study], lab: Lab) -> list[tuple[Study, Job]]:
    """Return all that studies make, in the order in which it is made: by turn and in a turn prompt
    by prompt, so that all tables have the same prompts wherever a run is stopped."""
    planned = [(study, job) for study in studies for job in study.jobs(lab)]
    prompts = {entry["prompt"]: place for place, entry in enumerate(lab.inputs)}
    last = len(prompts)
    return sorted(planned, key=lambda pair: (pair[1].turn, prompts.get(pair[1].prompt, last)))


def bring_up_to_date(studies: Sequence[Study], lab: Lab) -> None:
    """Make the file's last lines those of what is planned now: a row of settings that are back
    comes again, and nothing is said to be left out for a reason that is gone."""
    planned = plan_jobs(studies, lab)
    keys = {f"{study.name} | {job.key}" for study, job in planned}
    names = {study.name for study in studies}
    for key, data in lab.results.of_kind("skipped").items():
        if data["why"] and key.partition(" | ")[0] in names and key not in keys:
            lab.results.add("skipped", key, {"why": ""})
    for study in studies:
        latest = {_row_name(key): key for key in lab.results.of_kind(study.name)}
        for _, job in (pair for pair in planned if pair[0] is study):
            found = lab.results.find(study.name, job.key)
            if found is not None and latest[_row_name(job.key)] != job.key:
                lab.results.add(study.name, job.key, found)


def _row_name(key: str) -> str:
    """Return what a job's key says but the hash of its settings."""
    return key.rpartition(" | ")[0]


def pending(studies: Sequence[Study], lab: Lab) -> list[tuple[Study, Job]]:
    """Return what is not in the file yet."""
    return [
        (study, job)
        for study, job in plan_jobs(studies, lab)
        if not lab.has(study.name, job.key, scored=job.scored)
    ]


def run_studies(
    todo: Sequence[tuple[Study, Job]],
    lab: Lab,
    progress: Progress | None = None,
    *,
    complain: Callable[[str], None] | None = None,
    forecast: Forecast | None = None,
    minutes: float | None = None,
) -> Done:
    """Make what is `pending`; return what was left out and what failed, and why.

    `progress(study, done, total)` is told before each job, in seconds of the `forecast` or in
    units of cost. A job that fails is told to `complain` at once and the others go on; it is not
    in the file, so the next start tries it again. After so many `minutes` nothing more is begun,
    nor what would take longer.
    """
    lengths = [forecast.seconds(*pair) if forecast else pair[1].cost for pair in todo]
    begun, total = monotonic(), sum(lengths)
    end = None if minutes is None else begun + 60 * minutes
    left_out: list[str] = []
    failed: list[str] = []
    for number, (study, job) in enumerate(todo):
        now = monotonic()
        if end is not None and number and now + (lengths[number] if forecast else 0.0) > end:
            return Done(left_out, failed, todo[number:])
        if progress is not None:
            progress(study.name, sum(lengths[:number]), total)
        skipped = f"{study.name} | {job.key}"
        try:
            found = job.make()
        except Skipped as why:
            left_out.append(f"{study.name}: {why}")
            if lab.results.find("skipped", skipped) != {"why": str(why)}:
                lab.results.add("skipped", skipped, {"why": str(why)})
        except Exception as error:  # noqa: BLE001 (whatever it is: the other jobs go on)
            failed.append(f"{study.name}: {job.key}: {describe(error)}")
            if complain is not None:
                complain(f"failed: {failed[-1]}")
        else:
            lab.results.add(study.name, job.key, found, monotonic() - now)
            if (lab.results.find("skipped", skipped) or {}).get("why"):
                lab.results.add("skipped", skipped, {"why": ""})
    return Done(left_out, failed)
