"""What commands share: options of a video, progress, notes and the ways to print a result."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.progress import Progress, TaskID, TimeElapsedColumn
from typer.core import TyperCommand

from svoo.errors import ConfigError

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Denoising steps.")]
Frames = Annotated[int | None, typer.Option(min=1, help="Frames of the video.")]
Height = Annotated[int | None, typer.Option(min=1, help="Height in pixels.")]
Width = Annotated[int | None, typer.Option(min=1, help="Width in pixels.")]
Seed = Annotated[int, typer.Option(help="Seed of the noise.")]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Spread the prompts over a Ray cluster: host:port, ray://host:port, auto (the one "
        "that runs here) or local (a new one here). Without an address: auto, else local.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(help="With --ray: how many at once. Default: one per GPU, or per four CPUs."),
]

_SLOW = 0.5  # seconds after which compiling is worth a note


class Command(TyperCommand):
    """A command whose option --ray may stand without an address."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (typer's own click)
        """Read the arguments, `--ray` alone as `--ray any`."""
        follows = [*args, "-"][1:]
        given = [
            [entry, "any"] if entry == "--ray" and after.startswith("-") else [entry]
            for entry, after in zip(args, follows, strict=False)
        ]
        return super().parse_args(ctx, [part for parts in given for part in parts])


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options that every command with a pipeline has; None leaves a setting to the model."""

    model: Annotated[
        str, typer.Option(help="Short name (`svoo models`), hub id or path; mini is embedded.")
    ] = "mini"
    lora: Annotated[str | None, typer.Option(help="A LoRA: file, folder or hub id.")] = None
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16 or float16. Default: bfloat16 on a GPU, else float32."
        ),
    ] = None
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, ... Default: a GPU if there is one.")
    ] = None
    offload: Annotated[
        bool, typer.Option("--offload", help="Keep idle parts of the pipeline in CPU memory.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class VideoOptions(ModelOptions):
    """And those of every command that makes videos."""

    steps: Steps = None
    frames: Frames = None
    height: Height = None
    width: Width = None
    seed: Seed = 0
    guidance: Annotated[float | None, typer.Option(help="Guidance scale.")] = None
    negative_prompt: Annotated[str | None, typer.Option(help="What not to show.")] = None


def with_video_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `VideoOptions`, which it gets as its argument `video`."""
    return _with_options(command, "video", VideoOptions)


def with_model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `ModelOptions`, which it gets as its argument `model`."""
    return _with_options(command, "model", ModelOptions)


def _with_options(
    command: Callable[..., None], argument: str, options: type[ModelOptions]
) -> Callable[..., None]:
    own = [
        parameter
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.name != argument
    ]
    hints = get_type_hints(options, include_extras=True)
    shared = [
        inspect.Parameter(
            entry.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=entry.default,
            annotation=hints[entry.name],
        )
        for entry in fields(options)
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:  # noqa: ANN401 (whatever the options are)
        chosen = options(**{entry.name: given.pop(entry.name) for entry in shared})
        command(**given, **{argument: chosen})

    parameters = [*own, *shared]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {entry.name: entry.annotation for entry in parameters}
    return run


@dataclass
class Output:
    """Where a command prints: results to the output, progress and notes to the error stream."""

    json: bool = False
    quiet: bool = False
    console: Console = field(default_factory=Console)
    aside: Console = field(default_factory=lambda: Console(stderr=True))

    def say(self, *what: object) -> None:
        """Print a result for people."""
        if not (self.json or self.quiet):
            # Too long a line is the terminal's to break: what is cut cannot be copied.
            self.console.print(*what, sep="\n", highlight=False, markup=False, soft_wrap=True)

    def show(self, *tables: object) -> None:
        """Print tables for people."""
        if not (self.json or self.quiet):
            self.console.print(*tables, sep="\n", highlight=False)

    def data(self, found: Any) -> None:  # noqa: ANN401 (what JSON can hold)
        """Print the result for programs, where it was asked for."""
        if self.json:
            print(json.dumps(found, indent=1, allow_nan=False))  # noqa: T201 (no line is wrapped)

    def note(self, text: str) -> None:
        """Print one line beside the results."""
        if not self.quiet:
            line = f"note: {text}"
            self.aside.print(line, highlight=False, markup=False, soft_wrap=True)

    def complain(self, *lines: str) -> None:
        """Print what could not be done, also where nothing else is printed."""
        self.aside.print(*lines, sep="\n", highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Show a bar beside the results; warnings become notes when it has ended."""
        with self.notes():
            columns = (*Progress.get_default_columns(), TimeElapsedColumn())
            day = 24 * 3600.0  # steps may take minutes; rich would forget them after half of one
            with Progress(
                *columns,
                console=self.aside,
                speed_estimate_period=day,
                disable=self.quiet or not self.aside.is_terminal,
                transient=True,
            ) as bar:
                try:
                    yield bar
                except KeyboardInterrupt as error:
                    self.note("interrupted; what is finished is whole, nothing else is left")
                    raise typer.Exit(130) from error

    @contextmanager
    def notes(self) -> Iterator[None]:
        """Turn warnings into notes of one line each, and keep other libraries' own off the
        terminal."""
        libraries = [logging.getLogger(name) for name in ("diffusers", "transformers")]
        levels = [library.level for library in libraries]
        for library in libraries:
            library.setLevel(logging.ERROR)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")
                try:
                    yield
                finally:
                    seen = dict.fromkeys(
                        " ".join(str(entry.message).split())
                        for entry in caught
                        if issubclass(entry.category, UserWarning)
                    )
        finally:
            for library, level in zip(libraries, levels, strict=True):
                library.setLevel(level)
        for text in seen:
            self.note(text)

    def prepare_kernels(self, bar: Progress, task: TaskID) -> None:
        """Compile the CPU's kernels if no earlier run has, and say so."""
        from svoo.kernels.cpp.build import why_no_library

        bar.update(task, description="compiling the C++ kernels (first run only)")
        start = time.perf_counter()
        missing = why_no_library()
        seconds = time.perf_counter() - start
        if missing is None and seconds > _SLOW:
            self.note(f"the C++ kernels were compiled for this machine, once ({seconds:.1f} s)")
        bar.update(task, description="loading")


def as_numbers(name: str, text: str) -> list[float]:
    """Return numbers that are written with commas between them."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--{name} must be numbers, got {text!r}") from error


def runs_on_cpu(device: str | None) -> bool:
    """Return whether a run without another wish is the CPU's."""
    import torch

    return device == "cpu" or (device is None and not torch.cuda.is_available())


def say_seconds(seconds: float) -> str:
    """Return a length of time in words: 40 s, 12 min, 3 h 5 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
