import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import svoo
from svoo.app import cli
from svoo.errors import ConfigError

COMMANDS = ("generate", "profile", "inspect", "compare", "demo", "doctor", "models", "weights")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "svoo", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "text", ["mass must be in (0, 1], got 7", "pip install 'svoo[gpu]' or a[/b]/c", "word " * 60]
)
def test_what_the_library_refuses_is_one_message_and_exit_code_2(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise ConfigError(text)

    monkeypatch.setattr(cli, "app", refuse)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"error: {text}\n"


def test_the_command_runs_as_a_module_and_says_its_version() -> None:
    assert run("--version").stdout == f"svoo {svoo.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    shown = CliRunner().invoke(cli.app, [command, "--help"])
    assert shown.exit_code == 0
    assert "Example" in shown.output and f"svoo {command}" in shown.output
    assert "--json" in shown.output


BAD = (
    (("--out", "v.json"), "the video must end in .mp4, .gif, .webm, .npy"),
    (("--guidance", "nan"), "--guidance must be a finite number, got nan"),
    (("--seed", str(2**70)), "--seed must be a whole number of 64 bits"),
    (("--device", "meta"), "--device meta cannot be used here"),
    (("--frames", "1000001", "--height", "14400", "--width", "25600"), "it may need"),
    (("--mass", "7"), "mass must be a number from 0 to 1, got 7.0"),
    (("--method", "magic"), "--method must be one of"),
    (("--model", "none/such/place"), "cannot load"),
    (("--image", "prompts.txt"), "cannot read the image"),
    (("--prompts", "prompts.txt"), "give --prompt TEXT or --prompts FILE, one of them"),
)


def test_bad_requests_are_one_message_exit_code_2_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "prompts.txt").write_text("a fox\n")
    for wrong, message in BAD:
        monkeypatch.setattr(sys, "argv", ["svoo", "generate", "--prompt", "x", *wrong])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        said = capsys.readouterr()
        assert stopped.value.code == 2, wrong
        assert message in said.err and said.err.startswith("error: "), said.err
        assert [path.name for path in tmp_path.iterdir()] == ["prompts.txt"], wrong


@pytest.mark.parametrize(
    ("ranks", "command", "message"),
    [
        (3, ["generate", "--prompt", "a fox"], "3 ranks cannot share"),
        (3, ["generate", "--prompts", "prompts.txt"], "3 ranks cannot share"),
        (1, ["generate", "--prompts", "bad.txt"], "cannot read the prompts"),
        (1, ["profile", "--prompts", "bad.txt", "--out", "p.safetensors"], "cannot read the"),
        (1, ["generate", "--prompts", "prompts.txt", "--ray", "ADDRESS"], "does not answer"),
        (1, ["profile", "--prompts", "prompts.txt", "--ray", "ADDRESS"], "does not answer"),
        (1, ["estimate", "--gpus", "7"], "--gpus 7 does not divide the 40 heads"),
    ],
)
def test_what_many_machines_cannot_do_is_refused_before_any_work(
    ranks: int,
    command: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", str(ranks)), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    (tmp_path / "prompts.txt").write_text("a fox\n")
    (tmp_path / "bad.txt").write_bytes(b"a fox\n\xff\n")
    if "ADDRESS" in command:
        pytest.importorskip("ray", reason="ray is not installed: pip install 'svoo[fleet]'")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        given = [address if text == "ADDRESS" else text for text in command]
        monkeypatch.setattr(sys, "argv", ["svoo", *given])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    said = capsys.readouterr()
    assert stopped.value.code == 2 and message in said.err, said.err
    assert said.err.count("error: ") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"prompts.txt", "bad.txt"}


def test_numbers_that_typer_refuses() -> None:
    bad = run("demo", "--steps", "0")
    assert bad.returncode == 2
    assert "greater than or equal to 1" in bad.stderr
