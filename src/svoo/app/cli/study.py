"""`svoo study`: the paper's tables and figures, and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from svoo.app.cli.shared import (
    Json,
    Output,
    Quiet,
    Ray,
    VideoOptions,
    Workers,
    runs_on_cpu,
    with_video_options,
)
from svoo.errors import ConfigError

_OUT = Path("out/study")


@with_video_options
def run(
    studies: Annotated[
        list[str] | None,
        typer.Argument(
            help="all, report (only make the page from what is there), or some of: layers, "
            "coupling, recall, quality, examples, tradeoff, ablation, reuse, steps, theorem and "
            "seeds."
        ),
    ] = None,
    *,
    out: Annotated[
        Path, typer.Option(help="Folder of results.jsonl and the report; the same goes on.")
    ] = _OUT,
    prompts: Annotated[
        Path | None,
        typer.Option(help="A file with one prompt per line; default: held-out ones for mini."),
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
    images: Annotated[
        Path | None, typer.Option(help="A folder of pictures, for image to video.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Only this method; may be repeated.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two prompts, 600 tokens: some minutes for all.")
    ] = False,
    ray: Ray = None,
    workers: Workers = None,
    as_json: Json = False,
    quiet: Quiet = False,
    video: VideoOptions,
) -> None:
    """Make the paper's tables and figures again, and the report. Hours; stop and go on at will.

    Each result is a line of results.jsonl as soon as it is there: begun again, the same command
    goes on. Keep the machine idle: speed-ups are among the figures. With --ray prompts go to
    workers; their times count only where each worker has a machine of its own.

    Examples:

    [bold]svoo study all --quick[/]

    [bold]svoo study layers coupling --count 5 --out out/study[/]

    [bold]svoo study quality --model wan2.1-t2v-1.3b --prompts prompts.txt --out out/wan[/]

    [bold]svoo study report --out out/study[/]
    """
    from svoo.fleet.cluster import open_cluster
    from svoo.plugin.request import Request
    from svoo.studies.report import HTML, write_report
    from svoo.studies.results import read_results
    from svoo.studies.run import RESULTS, Order, open_lab, pending, run_studies
    from svoo.studies.spread import Done, spread_studies
    from svoo.studies.table import STUDIES, find_studies

    output = Output(json=as_json, quiet=quiet)
    names = list(studies or [])
    if not names:
        known = ", ".join(study.name for study in STUDIES)
        raise ConfigError(f"say what to study: all, report, or some of {known}")
    if "report" in names and names != ["report"]:
        raise ConfigError("`report` stands alone: the other studies write the report at their end")
    done = Done()
    if names != ["report"]:
        chosen = find_studies(names)
        request = Request(prompt="", out=out, **vars(video))
        order = Order(request, out, prompts, images, count, quick, method or None)
        with output.progress() as bar:
            task = bar.add_task("loading", total=None)
            use_gpus = video.device != "cpu"
            with open_cluster(ray, workers=workers, use_gpus=use_gpus) as cluster:
                if runs_on_cpu(video.device):
                    output.prepare_kernels(bar, task)

                def progress(study: str, done: float, total: float) -> None:
                    bar.update(task, description=study, completed=done, total=total)

                with open_lab(order) as lab:
                    todo = pending(chosen, lab)
                    if cluster is None:
                        done = Done(run_studies(todo, lab, progress))
                    else:
                        done = spread_studies(todo, lab, order, cluster, progress)
    with output.notes():
        claims = write_report(read_results(out / RESULTS), out)
    for reason in done.left_out:
        output.note(f"left out: {reason}")
    for claim in claims:
        output.say(f"{claim.verdict:20s} {claim.text}\n{'':20s} {claim.figure}")
    output.say(f"{out / HTML} written")
    output.data({"page": str(out / HTML), "claims": [vars(claim) for claim in claims]})
    for reason in done.failed:
        output.note(f"failed: {reason}")
    if done.failed:
        raise typer.Exit(1)
