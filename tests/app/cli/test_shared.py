import json
import logging
import warnings

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from svoo.app.cli import app, shared
from svoo.app.cli.shared import (
    Output,
    VideoOptions,
    as_numbers,
    say_seconds,
    with_video_options,
)
from svoo.errors import ConfigError


def test_a_command_gets_the_shared_options_as_one_argument() -> None:
    seen: list[tuple[str, VideoOptions]] = []

    @with_video_options
    def command(*, own: str = "x", video: VideoOptions) -> None:
        seen.append((own, video))

    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, ["--own", "y", "--steps", "3", "--negative-prompt", "fog"])
    assert done.exit_code == 0, done.output
    assert seen == [("y", VideoOptions(steps=3, negative_prompt="fog"))]


def test_warnings_become_notes_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    with output.notes():
        for _ in range(2):
            warnings.warn("the embedded model does not\nknow fox", stacklevel=1)
        logging.getLogger("diffusers").warning("raw")
    said = capsys.readouterr()
    assert said.err == "note: the embedded model does not know fox\n" and said.out == ""


def test_results_are_for_people_programs_or_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    for output in (Output(), Output(json=True), Output(quiet=True)):
        output.say("words " * 40)
        output.data({"figure": 1})
        output.note("aside")
    said = capsys.readouterr()
    words, _, data = said.out.partition("\n")
    assert words == "words " * 40 and json.loads(data) == {"figure": 1}
    assert said.err == "note: aside\n" * 2


def test_an_interrupt_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as stopped, Output().progress():
        raise KeyboardInterrupt
    assert stopped.value.exit_code == 130
    assert "interrupted; what is finished is whole" in capsys.readouterr().err


def test_the_progress_of_slow_steps_has_a_remaining_time() -> None:
    now = 0.0
    with Output(aside=Console(stderr=True, quiet=True)).progress() as bar:
        bar.get_time = lambda: now
        task = bar.add_task("denoising", total=50)
        for done in range(1, 4):
            now += 600  # seconds per step
            bar.update(task, completed=done)
        assert bar.tasks[0].time_remaining == 47 * 600


def test_compiling_says_what_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shared, "_SLOW", -1.0)
    monkeypatch.setattr("svoo.kernels.cpp.build.why_no_library", lambda: None)
    output = Output()
    with output.progress() as bar:
        output.prepare_kernels(bar, bar.add_task("loading", total=None))
        assert bar.tasks[0].description == "loading"
    assert "the C++ kernels were compiled for this machine, once" in capsys.readouterr().err


def test_numbers() -> None:
    assert as_numbers("masses", "0.5,0.95") == [0.5, 0.95]
    with pytest.raises(ConfigError, match="--masses must be numbers, got 'half'"):
        as_numbers("masses", "half")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (89, "89 s"), (720, "12 min"), (11100, "3 h 5 min")]
)
def test_lengths_of_time_in_words(seconds: float, words: str) -> None:
    assert say_seconds(seconds) == words


def test_a_command_without_arguments() -> None:
    assert CliRunner().invoke(app, ["models"]).exit_code == 0
