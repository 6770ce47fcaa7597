"""`svoo study`: the paper's tables and figures, and the report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from svoo.app.cli.shared import (
    Json,
    Output,
    Quiet,
    Ray,
    VideoOptions,
    Workers,
    runs_on_cpu,
    say_seconds,
    with_video_options,
)
from svoo.errors import ConfigError

if TYPE_CHECKING:
    from svoo.studies.base import Study
    from svoo.studies.forecast import Forecast, Jobs
    from svoo.studies.lab import Lab
    from svoo.studies.run import Done

_OUT = Path("out/study")
_LOOK = 2.0  # seconds in which other processes are looked for


@with_video_options
def run(
    studies: Annotated[
        list[str] | None,
        typer.Argument(
            help="all, report (only make the page from what is there), or some of: layers, "
            "coupling, recall, quality, examples, tradeoff, ablation, reuse, steps, theorem and "
            "seeds. Without a name: lists them."
        ),
    ] = None,
    *,
    out: Annotated[
        Path, typer.Option(help="Folder of results.jsonl and the report; a folder begun goes on.")
    ] = _OUT,
    prompts: Annotated[
        Path | None,
        typer.Option(help="A file with one prompt per line; default: held-out ones for mini."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="Use only the first this many prompts.")
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="A folder of pictures, for image to video.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Only this method; give it several times for several.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A trial: two prompts, 600 tokens, some minutes for all."),
    ] = False,
    minutes: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after this many; the same command goes on later."),
    ] = None,
    retime: Annotated[
        bool,
        typer.Option(
            "--retime", help="Time again what another machine, or a busy one, has timed."
        ),
    ] = False,
    untimed: Annotated[
        bool,
        typer.Option(
            "--untimed",
            help="For quality alone: dense is made once for each prompt, no time counts, and the "
            "machine may be busy.",
        ),
    ] = False,
    ray: Ray = None,
    workers: Workers = None,
    as_json: Json = False,
    quiet: Quiet = False,
    video: VideoOptions,
) -> None:
    """Measure the paper's tables and figures here, and write a report. Takes hours; resumable.

    Each result is a line of results.jsonl as soon as it is there, the most important first.
    Started again, the same command goes on, and tries again what failed. Keep the machine idle:
    speed-ups are among the figures. With --ray prompts go to workers; their times count only where
    each has a machine of its own.

    Examples:

    [bold]svoo study all --quick[/]

    [bold]svoo study all --minutes 90 --out out/study[/]

    [bold]svoo study quality --model wan2.1-t2v-1.3b --prompts prompts.txt --out out/wan[/]

    [bold]svoo study report --out out/study[/]
    """
    from svoo.fleet.cluster import open_cluster
    from svoo.plugin.request import Request
    from svoo.studies.forecast import make_forecast
    from svoo.studies.report import HTML, write_report
    from svoo.studies.results import read_results
    from svoo.studies.run import (
        RESULTS,
        Done,
        Order,
        bring_up_to_date,
        open_lab,
        pending,
        plan_jobs,
        run_studies,
    )
    from svoo.studies.spread import spread_studies
    from svoo.studies.table import STUDIES, find_studies

    output = Output(json=as_json, quiet=quiet)
    names = list(studies or [])
    if not names:
        _list_studies(output, STUDIES)
        return
    if "report" in names and names != ["report"]:
        raise ConfigError("`report` stands alone: the other studies write the report at their end")
    if minutes is not None and ray is not None:
        raise ConfigError("--minutes is for one machine, --ray for many: give one of them")
    if untimed and retime:
        raise ConfigError("--untimed makes rows without times, --retime times rows: give one")
    done, seconds_left = Done(), 0.0
    if names != ["report"]:
        chosen = find_studies(names)
        request = Request(prompt="", out=out, **vars(video))
        order = Order(
            request,
            out,
            prompts,
            images,
            count,
            quick,
            method or None,
            retime,
            timed=not untimed,
        )
        with output.progress() as bar:
            task = bar.add_task("loading", total=None)
            use_gpus = video.device != "cpu"
            with open_cluster(ray, workers=workers, use_gpus=use_gpus) as cluster:
                if runs_on_cpu(video.device):
                    output.prepare_kernels(bar, task)

                def progress(study: str, done: float, total: float) -> None:
                    bar.update(task, description=study, completed=done, total=total)

                with open_lab(order) as lab:
                    bring_up_to_date(chosen, lab)
                    todo, planned = pending(chosen, lab), plan_jobs(chosen, lab)
                    if any(job.scored for _, job in planned):
                        _say_what_is_missing(output, lab)
                    if cluster is None:
                        if todo and not untimed:
                            _say_if_busy(output)
                        forecast = make_forecast(planned, lab) if todo else None
                        _say_what_is_left(output, todo, len(planned), forecast)
                        done = run_studies(
                            todo,
                            lab,
                            progress,
                            complain=output.complain,
                            forecast=forecast,
                            minutes=minutes,
                        )
                    else:
                        done = spread_studies(
                            todo, lab, order, cluster, progress, complain=output.complain
                        )
                    if done.not_begun:
                        forecast = make_forecast(planned, lab)  # by what was made meanwhile
                        seconds_left = forecast.total(done.not_begun)
    try:
        with output.notes():
            claims = write_report(read_results(out / RESULTS), out)
    except ConfigError:
        _stop_if_failed(output, done)  # which is why there is nothing to report
        raise
    for reason in done.left_out:
        output.note(f"left out: {reason}")
    if done.not_begun:
        left = f"{len(done.not_begun):,} results are left, about {say_seconds(seconds_left)}"
        output.note(f"stopped in time: {left}; the same command goes on")
    for claim in claims:
        output.say(f"{claim.verdict:20s} {claim.text}\n{'':20s} {claim.figure}")
    output.say(f"{out / HTML} written")
    found = {"page": str(out / HTML), "claims": [vars(claim) for claim in claims]}
    output.data({**found, "left": len(done.not_begun)})
    _stop_if_failed(output, done)


def _stop_if_failed(output: Output, done: Done) -> None:
    """Name what failed and end with 1, if anything did."""
    for reason in done.failed:
        output.note(f"failed: {reason}")
    if done.failed:
        output.note("the same command tries again what failed")
        raise typer.Exit(1)


def _say_what_is_missing(output: Output, lab: Lab) -> None:
    """Print which weights of scores are not here, and the command that fetches them."""
    for reason in lab.results.sessions()[-1]["scores"]:
        if "`svoo weights" in reason:
            output.note(f"without {reason}. The same command then makes such rows again")


def _say_if_busy(output: Output) -> None:
    """Print a note if other processes take so much of this machine that times say little."""
    from svoo.plugin.machine import OtherWork
    from svoo.studies.lab import BUSY

    watch = OtherWork()
    time.sleep(_LOOK)
    share = watch.share() or 0.0
    if share > BUSY:
        output.note(
            f"other processes take {share:.0%} of this machine: times will be marked as such; "
            "--retime makes them again when it is idle"
        )


def _list_studies(output: Output, studies: Sequence[Study]) -> None:
    """Print what there is to study."""
    table = Table("study", "in the paper", "what it shows", box=None)
    for study in studies:
        table.add_row(study.name, study.paper, study.title)
    output.show(table)
    output.say("\nsvoo study all --quick tries every one; svoo study report makes the page alone")
    facts = ("name", "title", "paper", "about")
    output.data([{fact: getattr(study, fact) for fact in facts} for study in studies])


def _say_what_is_left(output: Output, todo: Jobs, planned: int, forecast: Forecast | None) -> None:
    """Print how much there is to be made and about how long it takes."""
    from svoo.studies.forecast import what_is_left

    todo = [pair for pair in todo if pair[1].cost]  # what cannot be made here costs nothing
    if forecast is None or not todo:
        output.note(f"all {planned:,} results are in the file: nothing is made again")
        return
    parts = (
        f"{left.study} {left.count:,} ({say_seconds(left.seconds)})"
        for left in what_is_left(todo, forecast)
    )
    with_time = f"{len(todo):,} of {planned:,} results, about {say_seconds(forecast.total(todo))}"
    output.note(f"to be made: {with_time} on this machine. In this order: {', '.join(parts)}")
