"""`svoo generate`: videos of one prompt, or of every line of a file."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from svoo.plugin.ranks import find_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svoo.fleet.cluster import Cluster
    from svoo.fleet.jobs import OnProgress, Outcome
    from svoo.fleet.videos import Video
    from svoo.plugin.ranks import Ranks
    from svoo.plugin.request import Request

_VIDEO, _FOLDER = Path("out/video.mp4"), Path("out/videos")


@with_video_options
def run(
    *,
    prompt: Annotated[str | None, typer.Option(help="What to show.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="A file with one prompt per line; videos that are done are skipped."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The video: mp4, gif, webm, npy, or a folder of PNG pictures (no ending); a JSON "
            f"goes beside it. With --prompts a folder. Default: {_VIDEO}, {_FOLDER}."
        ),
    ] = None,
    image: Annotated[Path | None, typer.Option(help="First frame, for image-to-video.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="svoo, paper (the paper's settings), release (those of the authors' scripts), "
            "dense, or another name of svoo.available_methods()."
        ),
    ] = None,
    quality: Annotated[
        str | None,
        typer.Option(help="svoo's one knob: fast, balanced (the default) or careful."),
    ] = None,
    mass: Annotated[
        float | None,
        typer.Option(
            help="Let svoo choose by softmax mass, as in the paper (0 to 1), not by tolerance."
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="A file of `svoo profile`, for --method paper, release or sta, or for --mass."
        ),
    ] = None,
    fps: Annotated[
        float | None,
        typer.Option(
            help="Frames per second of the file. Default: the model's own, 16 where unknown."
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(
            help="With --prompts: videos of each prompt, with seeds --seed, --seed + 1, ..."
        ),
    ] = 1,
    vbench: Annotated[
        bool,
        typer.Option(
            "--vbench", help="With --prompts: name them for VBench, {prompt}-{index}.mp4."
        ),
    ] = False,
    ray: Ray = None,
    workers: Workers = None,
    retries: Annotated[
        int | None,
        typer.Option(
            min=0, help="With --prompts: how often to try again after a crash. Default: 2."
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    video: VideoOptions,
) -> None:
    """Generate a video, sparse or dense.

    Without --method: svoo's default mode, or dense where the video is too small to gain. Without
    --steps, --frames, --height, --width, --guidance or --fps: the model's own.

    Examples:

    [bold]svoo generate --prompt "a red circle moves left over a checkered floor"[/]

    [bold]svoo generate --model wan2.1-t2v-1.3b --prompt "a cat" --method paper --out cat.mp4[/]

    [bold]svoo generate --model wan2.1-i2v-14b --image cat.png --prompt "it jumps" --fps 16[/]

    [bold]svoo generate --model wan2.1-t2v-1.3b --prompt "a cat" --quality careful[/]

    [bold]svoo generate --prompts prompts.txt --out out/videos[/]

    [bold]torchrun --nproc-per-node 8 -m svoo generate --model wan2.1-t2v-14b --prompt "a cat"[/]

    [bold]torchrun --nproc-per-node 8 -m svoo generate --model wan2.1-t2v-14b --prompts p.txt[/]

    [bold]svoo generate --prompts vbench.txt --samples 5 --vbench --ray --out out/vbench[/]
    """
    settings = {
        **vars(video),
        "image": image,
        "method": method,
        "quality": quality,
        "mass": mass,
        "profile": profile,
        "fps": fps,
    }
    ranks = find_ranks()  # of the processes that torchrun started
    output = Output(json=as_json and ranks.first, quiet=quiet or not ranks.first)
    if (prompt is None) == (prompts is None):
        raise ConfigError("give --prompt TEXT or --prompts FILE, one of them")
    from svoo.plugin.request import Request

    if prompts is not None:
        from svoo.fleet.videos import list_videos

        folder = out or _FOLDER
        first = Request(prompt="", out=folder, **settings)
        batch = _Batch(output, ranks, first, ray=ray, workers=workers, retries=retries)
        videos: list[Video] = []
        if ranks.first:  # it decides what is made, and tells the others
            videos = list_videos(prompts, folder, settings, samples=samples, vbench=vbench)
        batch.run(videos)
        return
    given = ray is not None or workers is not None or retries is not None
    if given or vbench or samples != 1:
        raise ConfigError(
            "--ray, --workers, --retries, --samples and --vbench go with --prompts FILE"
        )
    _generate_one(output, Request(prompt=prompt or "", out=out or _VIDEO, **settings))


def _generate_one(output: Output, request: Request) -> None:
    from svoo.plugin.run import generate

    with output.progress() as bar:
        task = bar.add_task("loading", total=None)
        if runs_on_cpu(request.device):
            output.prepare_kernels(bar, task)

        def on_step(done: int, total: int) -> None:
            bar.update(task, description="denoising", completed=done, total=total)

        record = generate(request, on_step)
    output.say(record.pop("summary"), _say_done(request, record))
    output.data(record)


def _say_done(request: Request, record: dict[str, Any]) -> str:
    seconds = record["seconds"]
    density = record["density"]
    return (
        f"{request.out} written: density {'1 (dense)' if density is None else f'{density:.3f}'}, "
        f"loading {seconds['loading']:.1f} s, denoising {seconds['denoising']:.1f} s, in all "
        f"{seconds['total']:.1f} s"
    )


@dataclass
class _Batch:
    """Many videos: those that are there are told, the others made, the failed ones listed."""

    output: Output
    ranks: Ranks
    first: Request  # what all have in common
    ray: str | None
    workers: int | None
    retries: int | None

    def __post_init__(self) -> None:
        """Refuse options that processes of torchrun have no use for."""
        given = (self.ray, self.workers, self.retries)
        if self.ranks.count > 1 and any(value is not None for value in given):
            raise ConfigError(
                "torchrun's processes share every video: leave --ray and --workers out, and in "
                "place of --retries give torchrun --max-restarts; what is done is skipped"
            )

    def run(self, videos: list[Video]) -> None:
        """Make what is missing; end with code 1 if some could not be made."""
        from svoo.plugin.run import describe_request

        wanted = [video.request for video in videos if video.record is None]
        for video in videos:
            if video.record is not None:
                self.output.say(f"{video.request.out} is there already")
        outcomes = iter(sorted(self._make(wanted), key=lambda outcome: outcome.index))
        found: list[dict[str, Any]] = []
        failed: list[Outcome[Request, dict[str, Any]]] = []
        for video in videos:
            if video.record is not None:
                found.append(video.record)
                continue
            outcome = next(outcomes)
            if outcome.error is not None:
                failed.append(outcome)
            request = describe_request(video.request)
            found.append(outcome.result or {"request": request, "error": outcome.error})
        self.output.data(found)
        if failed:
            lines = (f"  {entry.job.prompt}: {entry.error}" for entry in failed)
            self.output.complain(
                f"{len(failed)} of {len(videos)} videos could not be made; the same command tries "
                "them again:",
                *lines,
            )
            raise typer.Exit(1)

    def _make(self, wanted: list[Request]) -> list[Outcome[Request, dict[str, Any]]]:
        from svoo.fleet.cluster import open_cluster

        if not wanted and self.ranks.count == 1:
            return []
        device = self.first.device
        found: list[Outcome[Request, dict[str, Any]]] = []
        with self.output.progress() as bar:
            task = bar.add_task("loading", total=None)
            with open_cluster(self.ray, workers=self.workers, use_gpus=device != "cpu") as cluster:
                if wanted and cluster is None and runs_on_cpu(device):
                    self.output.prepare_kernels(bar, task)

                def on_progress(done: float) -> None:
                    text = f"{len(found)} of {len(wanted)} videos"
                    bar.update(task, description=text, completed=done, total=len(wanted))

                start = time.monotonic()
                for outcome in self._outcomes(wanted, cluster, on_progress):
                    found.append(outcome)
                    left = (time.monotonic() - start) / len(found) * (len(wanted) - len(found))
                    self._tell(outcome, f"{len(found)} of {len(wanted)}", left)
        return found

    def _outcomes(
        self, wanted: list[Request], cluster: Cluster | None, on_progress: OnProgress
    ) -> Iterator[Outcome[Request, dict[str, Any]]]:
        """Yield the videos as they are made: by this process, a cluster, or torchrun's."""
        from svoo.fleet.jobs import RETRIES
        from svoo.fleet.together import make_together
        from svoo.fleet.videos import make_videos

        if self.ranks.count > 1:
            return make_together(self.first, wanted, self.ranks, on_progress=on_progress)
        retries = RETRIES if self.retries is None else self.retries
        return make_videos(wanted, cluster, retries=retries, on_progress=on_progress)

    def _tell(
        self, outcome: Outcome[Request, dict[str, Any]], number: str, seconds_left: float
    ) -> None:
        if outcome.result is None:
            text = f"{outcome.job.out} failed after {outcome.attempts} tries: {outcome.error}"
        else:
            outcome.result.pop("summary")
            text = _say_done(outcome.job, outcome.result)
        left = f"; about {say_seconds(seconds_left)} left" if seconds_left else ""
        self.output.say(f"{number}: {text}{left}")
