import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from rich.console import Console
from typer.testing import CliRunner

from svoo import Profile
from svoo.app import cli
from svoo.errors import ConfigError
from svoo.metrics.video import write_video
from svoo.profiles.profile import flow_sigmas


def test_what_the_library_refuses_is_one_message_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise ConfigError("mass must be in (0, 1], got 7")

    monkeypatch.setattr(cli, "app", refuse)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: mass must be in (0, 1], got 7\n"


def test_what_looks_like_markup_is_printed_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise ConfigError("pip install 'svoo[gpu]' or a[/b]/c")

    monkeypatch.setattr(cli, "app", refuse)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "error: pip install 'svoo[gpu]' or a[/b]/c\n"


def test_the_command_runs_as_a_module_and_has_help() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "svoo", "demo", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Example" in result.stdout
    bad = run("demo", "--steps", "0")
    assert bad.returncode == 2
    assert "greater than or equal to 1" in bad.stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "svoo", *arguments], capture_output=True, text=True, check=False
    )


def test_doctor_and_models_print_tables() -> None:
    doctor = CliRunner().invoke(cli.app, ["doctor"])
    assert doctor.exit_code == 0
    assert "backend blocked" in doctor.output
    listed = CliRunner().invoke(cli.app, ["models"], env={"COLUMNS": "200"})
    assert listed.exit_code == 0
    assert "wan2.2-i2v-a14b" in listed.output
    assert "seam tested, no preset" in listed.output and "MochiPipeline" in listed.output


def test_generate_refuses_with_one_message_and_exit_code_2(tmp_path: Path) -> None:
    out = str(tmp_path / "v.mp4")
    for wrong, message in (
        (("--preset", "magic"), "--preset must be one of default, paper, release"),
        (("--model", str(tmp_path / "none")), "cannot load"),
        (("--mass", "7"), "mass must be a number in (0, 1], got 7.0"),
    ):
        result = run("generate", "--prompt", "x", "--out", out, *wrong)
        assert result.returncode == 2, result.stderr
        assert message in " ".join(result.stderr.split())
        assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def saved_profile(tmp_path: Path) -> Path:
    density = torch.rand(2, 3, 4, 2, 1, generator=torch.Generator().manual_seed(0))
    stage = torch.zeros(3, dtype=torch.int64)
    masses = torch.tensor([0.95], dtype=torch.float64)
    path = tmp_path / "p.safetensors"
    Profile(density, flow_sigmas(3, 5.0), stage, masses, {"model": "tiny"}).save(path)
    return path


def test_inspect_shows_compares_and_draws(saved_profile: Path, tmp_path: Path) -> None:
    page, picture = tmp_path / "p.html", tmp_path / "p.png"
    shown = CliRunner().invoke(
        cli.app, ["inspect", str(saved_profile), "--html", str(page), "--png", str(picture)]
    )
    assert shown.exit_code == 0, shown.output
    assert "tiny" in shown.output and "std: heads" in shown.output
    assert page.exists() and picture.exists()
    compared = CliRunner().invoke(cli.app, ["inspect", str(saved_profile), str(saved_profile)])
    assert "correlation 1.000, of ranks 1.000" in compared.output
    both = CliRunner().invoke(
        cli.app, ["inspect", str(saved_profile), str(saved_profile), "--png", str(picture)]
    )
    assert isinstance(both.exception, ConfigError)


def test_profile_records_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved_profile: Path
) -> None:
    asked: list[Any] = []

    def record(request: Any, inputs: Any, measuring: Any, **_: Any) -> Profile:
        asked.append((request, inputs, measuring))
        return Profile.load(saved_profile)

    monkeypatch.setattr("svoo.plugin.calibrate.record_by_name", record)
    (tmp_path / "prompts.txt").write_text("a fox\n")
    command = ["profile", "--model", "x/y", "--prompts", str(tmp_path / "prompts.txt"), "--rows"]
    done = CliRunner().invoke(
        cli.app, [*command, "all", "--masses", "0.5,0.95", "--method", "closed-form"]
    )
    assert done.exit_code == 0, done.output
    assert "no measured profile is stored" in done.output
    request, inputs, measuring = asked[0]
    assert (request.model, inputs) == ("x/y", [{"prompt": "a fox"}])
    assert (measuring.rows, measuring.masses) == (None, [0.5, 0.95])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "x/y"], "give --prompts FILE"),
        (["--masses", "0.5,2"], r"mass must be in \(0, 1\], got 2.0"),
        (["--masses", "half"], "--masses must be numbers, got 'half'"),
        (["--rows", "some"], "--rows must be a whole number or all, got 'some'"),
        (["--rows", "nan"], "--rows must be a whole number or all, got 'nan'"),
        (["--rows", "3.7,9"], "--rows must be a whole number or all"),
        (["--branch", "third"], "branch must be cond or both"),
        (["--dtype", "int4"], "--dtype must be one of float32, bfloat16, float16"),
        (["--inputs", "1000"], "--inputs must be 1 to the"),
    ],
)
def test_bad_profile_requests(arguments: list[str], message: str) -> None:
    refused = CliRunner().invoke(cli.app, ["profile", *arguments])
    assert isinstance(refused.exception, ConfigError)
    assert re.search(message, str(refused.exception))


def test_compare_says_how_alike_videos_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    frames = np.random.default_rng(0).uniform(size=(3, 48, 64, 3)).astype(np.float32)
    write_video(frames, tmp_path / "a.mp4")
    write_video(frames[:, ::-1], tmp_path / "b.mp4")
    same = CliRunner().invoke(cli.app, ["compare", *[str(tmp_path / "a.mp4")] * 2])
    assert "PSNR inf dB, SSIM 1.0000" in same.output
    assert "LPIPS unavailable: its weights are not here" in same.output
    other = CliRunner().invoke(
        cli.app, ["compare", str(tmp_path / "a.mp4"), str(tmp_path / "b.mp4")]
    )
    assert other.exit_code == 0 and "inf" not in other.output
    unknown = CliRunner().invoke(cli.app, ["weights", "vgg"])
    assert isinstance(unknown.exception, ConfigError)


def test_demo_prints_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("svoo.app.demo.load", lambda: tiny.build("wan2.1-t2v"))
    sizes = ["--steps", "5", "--frames", "9", "--height", "64", "--width", "64"]
    command = ["demo", "--out", str(tmp_path / "out"), "--prompt", "a red fox", *sizes]
    done = CliRunner().invoke(cli.app, command, env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    for word in ("dense", "paper", "default", "speed-up", "PSNR", "index.html"):
        assert word in done.output


def test_profile_end_to_end_on_the_embedded_model(tmp_path: Path) -> None:
    out = tmp_path / "p.safetensors"
    sizes = ["--steps", "4", "--frames", "5", "--height", "32", "--width", "48", "--rows", "8"]
    command = ["profile", "--inputs", "2", "--masses", "0.5,0.95", "--out", str(out), *sizes]
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 0, done.output
    found = Profile.load(out)
    assert found.density.shape == (2, 2, 6, 4, 2)  # of four steps, the first and the fourth
    assert (found.provenance["model"], found.provenance["tokens"]) == ("mini", "48")
    predicted = tmp_path / "closed.safetensors"
    command[-len(sizes) - 1] = str(predicted)
    closed = CliRunner().invoke(
        cli.app, [*command, "--method", "closed-form", "--against", str(out)]
    )
    assert closed.exit_code == 0, closed.output
    assert "of ranks" in closed.output
    other = CliRunner().invoke(cli.app, [*command[:-1], "9"])
    assert "closed-form there, measured now" in str(other.exception)


def test_the_progress_of_slow_steps_has_a_remaining_time() -> None:
    now = 0.0
    bar = cli._progress(Console())
    bar.get_time = lambda: now
    task = bar.add_task("denoising", total=50)
    for done in range(1, 4):
        now += 600  # seconds a step
        bar.update(task, completed=done)
    assert bar.tasks[0].time_remaining == 47 * 600


def test_inspect_shows_a_table_of_the_authors(official_profiles: Path) -> None:
    table = str(official_profiles / "sparsity_wan_1.3B_t2v.csv")
    unnamed = CliRunner().invoke(cli.app, ["inspect", table])
    assert isinstance(unnamed.exception, ConfigError)
    assert "does not say its model: give --model" in str(unnamed.exception)
    command = ["inspect", table, "--model", "wan2.1-t2v-1.3b", "--skip"]
    shown = CliRunner().invoke(cli.app, [*command, "0.2"])
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.output.split())
    assert "mean 0.127; standard deviation over inputs 0.000, steps 0.019, heads 0.154" in text
    assert "standard error unknown" in text
    assert isinstance(CliRunner().invoke(cli.app, [*command, "1"]).exception, ConfigError)
