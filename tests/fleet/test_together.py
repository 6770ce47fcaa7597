"""Many prompts under torchrun: the processes share each video; the first decides and writes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it carries no types
import pytest

from svoo.catalogue import find_model
from svoo.errors import ConfigError, FileError
from svoo.fleet import together
from svoo.fleet.together import make_together
from svoo.fleet.videos import list_videos, make_videos
from svoo.metrics.video import read_video
from svoo.plugin.ranks import Ranks
from svoo.plugin.request import Request
from svoo.storage import locked

pytestmark = pytest.mark.filterwarnings("ignore:the profile was measured with 7488")

SMALL: dict[str, Any] = {
    "method": "svoo", "steps": 2, "frames": 5, "height": 32, "width": 48, "device": "cpu",
}  # fmt: skip
OPTIONS = [f"--{name}={value}" for name, value in SMALL.items()]
MINI = find_model("mini")
PROMPTS = ("a red circle", "a blue star", "a green square")


def torchrun(*arguments: str) -> list[str]:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "svoo", "generate"]
    return [sys.executable, *launch, *arguments, *OPTIONS]


def requests_of(folder: Path, prompts: tuple[str, ...] = PROMPTS) -> list[Request]:
    file = folder.parent / "prompts.txt"
    file.write_text("\n".join(prompts))
    found = list_videos(file, folder, SMALL)
    return [video.request for video in found if video.record is None]


def test_two_processes_make_what_is_missing_as_one_does(tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    list(make_videos(requests_of(alone)))
    list(make_videos(requests_of(shared)[:1]))  # one is there before
    done = {path.name: path.stat().st_mtime_ns for path in shared.iterdir()}
    command = torchrun("--prompts", str(tmp_path / "prompts.txt"), "--out", str(shared), "--json")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout)  # of the first process alone
    assert [row["request"]["prompt"] for row in rows] == list(PROMPTS)
    assert {path.name for path in shared.iterdir()} == {path.name for path in alone.iterdir()}
    for name, changed in done.items():
        assert (shared / name).stat().st_mtime_ns == changed
    for path in alone.glob("*.mp4"):
        difference = read_video(path).astype(int) - read_video(shared / path.name).astype(int)
        assert abs(difference).max() <= 8  # one level of rounding, through the codec
        here, there = (
            json.loads(folder.joinpath(path.name).with_suffix(".json").read_text())
            for folder in (alone, shared)
        )
        assert there["density"] == pytest.approx(here["density"])
        assert there["request"]["device"] == here["request"]["device"]
    assert requests_of(shared) == []  # one process sees them as done


def test_a_process_killed_between_videos_ends_all_and_the_same_command_goes_on(
    tmp_path: Path,
) -> None:
    out = tmp_path / "videos"
    out.mkdir()  # the command tries a folder that is not there, and takes it away for a moment
    requests_of(out)
    command = torchrun("--prompts", str(tmp_path / "prompts.txt"), "--out", str(out))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        try:
            while run.poll() is None and not list(out.glob("*.json")):
                time.sleep(0.02)
            for process in psutil.Process(run.pid).children():
                if process.environ().get("RANK") == "1":
                    os.kill(process.pid, signal.SIGKILL)
            begin = time.monotonic()
            assert run.wait(timeout=120) != 0
            assert time.monotonic() - begin < 90
        finally:
            run.kill()  # a failure above must not leave it running
    finished = {path: path.stat().st_mtime_ns for path in out.glob("*.json")}
    assert 1 <= len(finished) < len(PROMPTS)
    again = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert again.returncode == 0, again.stderr
    assert len(list(out.glob("*.json"))) == len(PROMPTS)
    for path, changed in finished.items():
        assert path.stat().st_mtime_ns == changed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ray"], "torchrun's processes share every video"),
        (["--retries", "1"], "give torchrun --max-restarts"),
        ([], "cannot read the prompts"),
    ],
)
def test_bad_requests_are_refused_by_the_first_before_any_work(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from svoo.app.cli import app

    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    (tmp_path / "prompts.txt").write_bytes(b"a red circle\n\xff\n")
    command = ["generate", "--prompts", str(tmp_path / "prompts.txt"), *OPTIONS, *arguments]
    refused = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "videos")])
    assert isinstance(refused.exception, ConfigError) and message in str(refused.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.txt"]


class Pretending:
    """A generator that refuses some prompts and crashes with others."""

    made: list[str]

    def __init__(self, first: Request, _materials: object, ranks: Ranks) -> None:
        assert first.device == "cpu" and ranks == Ranks()
        type(self).made = []

    def __call__(self, request: Request, on_step: Any) -> dict[str, Any]:
        on_step(1, 2)
        if "star" in request.prompt:
            raise ConfigError("no star")
        if "square" in request.prompt:
            raise MemoryError("no room")
        self.made.append(request.prompt)
        return {"summary": "x"}


def test_what_all_refuse_is_told_and_the_next_one_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "Generator", Pretending)
    out = tmp_path / "videos"
    settings = Request(prompt="", out=out, **SMALL)
    told: list[float] = []
    requests = requests_of(out, ("a red circle", "a blue star", "a red ring"))
    found = list(make_together(settings, requests, Ranks(), on_progress=told.append))
    assert [(row.error, row.refused) for row in found] == [
        (None, False), ("no star", True), (None, False),
    ]  # fmt: skip
    assert told == [0.5, 1.5, 2.5] and Pretending.made == ["a red circle", "a red ring"]
    with pytest.raises(ConfigError, match="no star"):
        list(make_together(settings, requests[1:2], Ranks()))
    with pytest.raises(MemoryError, match="no room") as crash:
        list(make_together(settings, requests_of(out, ("a red square",)), Ranks()))
    assert crash.value.__notes__ == ["while this video was made: 'a red square'"]
    with locked(out), pytest.raises(FileError, match="another svoo is writing"):
        list(make_together(settings, requests, Ranks()))
    assert list(make_together(settings, [], Ranks())) == []
    with pytest.raises(ConfigError, match=f"3 ranks cannot share {MINI.heads} attention heads"):
        list(make_together(settings, requests, Ranks(0, 3, 0)))
