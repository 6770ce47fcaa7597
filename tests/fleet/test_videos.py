import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it carries no types
import pytest

from svoo.errors import ConfigError, FileError
from svoo.fleet import videos as videos_module
from svoo.fleet.cluster import Cluster
from svoo.fleet.jobs import OnStep
from svoo.fleet.videos import list_videos, make_videos, video_name
from svoo.plugin.request import Request
from svoo.plugin.run import describe_request
from svoo.storage import locked

pytestmark = pytest.mark.filterwarnings("ignore:the profile was measured with 7488")

SMALL: dict[str, Any] = {
    "method": "svoo",
    "steps": 2,
    "frames": 5,
    "height": 32,
    "width": 48,
    "device": "cpu",
}
PROMPTS = ("a red circle", "a blue star", "a green square", "a red star")
OPTIONS = [f"--{name}={value}" for name, value in SMALL.items()]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS))
    return path


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the videos of all prompts, made in this process."""
    folder = tmp_path_factory.mktemp("expected")
    (folder / "prompts.txt").write_text("\n".join(PROMPTS))
    outcomes = list(make_videos(missing(folder / "prompts.txt", folder / "videos")))
    assert [outcome.error for outcome in outcomes] == [None] * len(PROMPTS)
    return folder / "videos"


def missing(prompts: Path, folder: Path, **settings: Any) -> list[Request]:
    found = list_videos(prompts, folder, SMALL, **settings)
    return [video.request for video in found if video.record is None]


def test_a_folder_may_have_a_dot_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text(PROMPTS[0])
    (video,) = list_videos(tmp_path / "p.txt", tmp_path / "wan2.1-t2v-1.3b", SMALL)
    assert video.request.out.parent.name == "wan2.1-t2v-1.3b"


def contents(folder: Path) -> dict[str, Any]:
    """What a folder of videos holds, less what differs from run to run."""
    found: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix != ".json":
            found[path.name] = path.read_bytes()
            continue
        record = json.loads(path.read_text())
        del record["seconds"], record["machine"], record["request"]["out"]
        for part in (record["stats"], *record["stats"]["layers"]):
            del part["seconds"]
        found[path.name] = record
    return found


def workers() -> set[int]:
    """The processes of Ray's actors below this one."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            if "ray::_Actor" in " ".join(process.cmdline()):
                found.add(process.pid)
    return found


def test_a_worker_killed_in_the_middle_and_the_same_files(
    cluster: Cluster, prompts: Path, expected: Path, tmp_path: Path
) -> None:
    killed: list[int] = []
    before = workers()  # those that an earlier test has ended may not be gone yet

    def kill_once(_done: float) -> None:
        for number in workers() - before:
            if not killed:
                killed.append(number)
                os.kill(number, signal.SIGKILL)

    folder = tmp_path / "videos"
    outcomes = list(make_videos(missing(prompts, folder), cluster, on_progress=kill_once))
    assert killed and sorted(outcome.attempts for outcome in outcomes) == [1, 1, 1, 2]
    assert contents(folder) == contents(expected)


def test_the_driver_killed_and_started_again(
    prompts: Path, expected: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'svoo[fleet]'")
    folder = tmp_path / "videos"
    folder.mkdir()  # the command tries a folder that is not there, and takes it away for a moment
    command = [sys.executable, "-m", "svoo", "generate", "--prompts", str(prompts), *OPTIONS]
    command += ["--out", str(folder), "--ray", "local", "--workers", "2", "--json"]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while driver.poll() is None and not list(folder.glob("*.json")):
        time.sleep(0.02)
    driver.kill()
    driver.wait()
    finished = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    assert finished
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert [row["request"]["prompt"] for row in json.loads(again.stdout)] == list(PROMPTS)
    assert contents(folder) == contents(expected)
    for name, changed in finished.items():  # nothing was done twice
        assert (folder / name).stat().st_mtime_ns == changed


def test_a_prompt_that_crashes_is_told_and_the_others_are_made(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    class Failing:
        def __init__(self, *_: Any) -> None: ...

        def __call__(self, request: Request, on_step: OnStep) -> Any:
            on_step(1, 2)
            made.append(request.prompt)
            if request.prompt == PROMPTS[1]:
                raise MemoryError("no room")
            return videos_module._Made(b"video", {"request": {}, "summary": "x"})

    monkeypatch.setattr(videos_module, "_VideoWorker", Failing)
    requests = missing(prompts, tmp_path / "videos")
    found = list(make_videos(requests, retries=1))
    assert [outcome.error for outcome in found] == [None, "MemoryError: no room", None, None]
    assert made.count(PROMPTS[1]) == 2
    names = {path.name for path in (tmp_path / "videos").iterdir()}
    assert names == {
        path.name
        for request in (requests[0], requests[2], requests[3])
        for path in (request.out, request.out.with_suffix(".json"))
    }
    with locked(tmp_path / "videos"), pytest.raises(FileError, match="another svoo is writing"):
        next(make_videos(requests))


def test_names_for_vbench_and_their_seeds(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "videos"
    found = list_videos(prompts, out, {**SMALL, "seed": 7}, samples=2, vbench=True)
    named = [(video.request.out.name, video.request.seed) for video in found]
    assert named[:3] == [
        ("a red circle-0.mp4", 7),
        ("a red circle-1.mp4", 8),
        ("a blue star-0.mp4", 7),
    ]
    out.mkdir()
    video = found[0].request
    video.out.write_bytes(b"video")
    record = {"request": describe_request(video)}
    video.out.with_suffix(".json").write_text(json.dumps(record))
    again = list_videos(prompts, out, {**SMALL, "seed": 7}, samples=2, vbench=True)
    assert [entry.record for entry in again[:2]] == [record, None]
    with pytest.raises(ConfigError, match=r"other settings \(seed 7 there, 6 now\)"):
        list_videos(prompts, out, {**SMALL, "seed": 6}, samples=2, vbench=True)
    video.out.with_suffix(".json").write_text("{}")
    with pytest.raises(ConfigError, match="remove it to make it anew"):
        list_videos(prompts, out, {**SMALL, "seed": 7}, vbench=True)
    with pytest.raises(ConfigError, match="--samples must be a whole number from 1, got 0"):
        list_videos(prompts, out, SMALL, samples=0)
    for prompt in ("a/b", "c\\d", ".hidden", "long " * 60):
        prompts.write_text(prompt)
        with pytest.raises(ConfigError, match="--vbench names files by their prompts"):
            list_videos(prompts, out, SMALL, vbench=True)


def test_names_stay_in_the_folder_and_tell_settings_apart() -> None:
    def name(prompt: str, **settings: Any) -> str:
        return video_name(Request(prompt=prompt, out=Path("x"), **settings))

    hostile = ("../../etc/passwd", "/etc/passwd", "..", "a" * 5000, "\x00\n", "C:\\con", "猫")
    for prompt in hostile:
        found = name(prompt)
        assert Path(found).name == found and found.endswith(".mp4") and len(found) < 100
        assert not found.startswith(".")
    assert len({name(prompt) for prompt in (*hostile, "a fox", "a-fox")}) == len(hostile) + 2
    assert name("a fox") == name("a fox") != name("a fox", seed=1)
