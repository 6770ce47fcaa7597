import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from svoo.app.cli import app
from svoo.catalogue import find_model
from svoo.errors import ConfigError, ModelError
from svoo.studies.results import read_results
from svoo.studies.table import STUDIES

SMALL = ["--count", "1", "--steps", "3", "--frames", "9", "--height", "32", "--width", "48"]
SMALL += ["--method", "svg2", "--method", "svoo"]


@pytest.fixture(autouse=True, scope="module")
def alike_everywhere() -> Iterator[None]:
    """Whatever weights this user has fetched; other processes are not waited for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("svoo.app.cli.study._LOOK", 0.0)
        patch.setattr("svoo.studies.run.find_scorer", lambda: (None, ["nothing fetched"]))
        yield


def study(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["study", *arguments])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All studies in the smallest form."""
    folder = tmp_path_factory.mktemp("study")
    done = study("all", "--out", str(folder), *SMALL)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "report.html written" in done.stdout
    left_out = "left out: quality: image to video" in done.stderr
    assert left_out is not find_model("mini").takes_image
    return folder


def test_every_study_has_rows_and_a_chapter(out: Path) -> None:
    results = read_results(out / "results.jsonl")
    page = (out / "report.html").read_text()
    for entry in STUDIES:
        assert results.of_kind(entry.name), entry.name
        assert f'<h2 id="{entry.name}">' in page
    (session,) = results.sessions()
    assert session["commit"] and session["machine"]["torch"] and len(session["prompts"]) == 1
    assert all(run["prompt"] == session["prompts"][0] for run in results.of_kind("run").values())
    # One prompt tells nothing: no verdict is given.
    assert not re.search(r'verdict (holds|does-not-hold)">', page)


def test_begun_again_nothing_is_made_twice_and_nothing_is_lost(out: Path, tmp_path: Path) -> None:
    whole = (out / "results.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    cut = sum(len(line) for line in lines[:-3])  # killed while the third last was written
    again = tmp_path / "again"
    again.mkdir()
    (again / "results.jsonl").write_bytes(whole[: cut + 5])
    done = study("all", "--out", str(again), *SMALL, "--quiet")
    assert done.exit_code == 0, (done.output, done.exception)
    before, after = (read_results(folder / "results.jsonl") for folder in (out, again))
    kinds = {record.kind for record in before.records} - {"session", "skipped"}
    for kind in kinds:
        assert set(after.of_kind(kind)) == set(before.of_kind(kind)), kind
    keys = [(r.kind, r.key) for r in after.records if r.kind not in ("session", "skipped")]
    assert len(keys) == len(set(keys))


def test_the_report_is_made_from_the_file_alone(out: Path, tmp_path: Path) -> None:
    shutil.copy(out / "results.jsonl", tmp_path)
    done = study("report", "--out", str(tmp_path), "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["claims"][0]["verdict"] == "cannot be told here"
    for name in ("report.html", "README.md", "layers-0.8.png"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()


def test_alone_it_lists_what_there_is() -> None:
    done = study()
    assert done.exit_code == 0
    assert all(entry.name in done.stdout and entry.title in done.stdout for entry in STUDIES)
    rows = json.loads(study("--json").stdout)
    assert [row["name"] for row in rows] == [entry.name for entry in STUDIES]


def test_it_says_what_is_left_and_stops_in_time(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (out / "results.jsonl").read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith((b'{"kind":"steps', b'{"kind":"theo'))]
    (tmp_path / "results.jsonl").write_bytes(b"".join(kept))
    clock = iter(range(0, 10**6, 40))  # every look at the clock is 40 s later
    monkeypatch.setattr("svoo.studies.run.monotonic", lambda: next(clock))
    names = ["steps", "theorem", "--out", str(tmp_path), *SMALL]
    done = study(*names, "--minutes", "1", "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "to be made: 2 of 2 results, about " in done.stderr
    assert re.search(r"In this order: steps 1 \(.*\), theorem 1 \(", done.stderr)
    assert "stopped in time: 1 results are left, about " in done.stderr
    assert json.loads(done.stdout)["left"] == 1
    results = read_results(tmp_path / "results.jsonl")
    assert results.of_kind("steps") and not results.of_kind("theorem")
    done = study(*names)
    assert "to be made: 1 of 2 results" in done.stderr and "stopped" not in done.stderr
    assert read_results(tmp_path / "results.jsonl").of_kind("theorem")
    assert "all 2 results are in the file: nothing is made again" in study(*names).stderr


def test_what_fails_is_named_and_the_report_is_written(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (out / "results.jsonl").read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(b'{"kind":"theorem')]
    (tmp_path / "results.jsonl").write_bytes(b"".join(kept))
    names = ["layers", "theorem", "--out", str(tmp_path), *SMALL]
    with monkeypatch.context() as patch:
        patch.setattr("svoo.studies.lab.Lab.look", lambda *_: 1 / 0)
        done = study(*names)
    assert done.exit_code == 1 and (tmp_path / "report.html").exists()
    assert done.stderr.count("failed: theorem: ") == 2 and "ZeroDivisionError" in done.stderr
    assert study(*names).exit_code == 0
    assert read_results(tmp_path / "results.jsonl").of_kind("theorem")


def test_a_busy_machine_and_missing_weights_are_noted(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (out / "results.jsonl").read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(b'{"kind":"theorem')]
    (tmp_path / "results.jsonl").write_bytes(b"".join(kept))
    monkeypatch.setattr("svoo.plugin.machine.OtherWork.share", lambda _: 0.5)
    missing = "its weights are not here; fetch them with `svoo weights"
    monkeypatch.setattr("svoo.studies.run._why_no_lpips", lambda _: f"{missing} lpips`")
    why_not = [f"the proxies: {missing} scores`", "VBench: not here"]
    monkeypatch.setattr("svoo.studies.run.find_scorer", lambda: (None, why_not))
    done = study("quality", "theorem", "--out", str(tmp_path), *SMALL)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "note: other processes take 50% of this machine" in done.stderr
    assert "--retime" in done.stderr and "without VBench" not in done.stderr
    for command in ("lpips", "scores"):
        assert f"`svoo weights {command}`. The same command" in done.stderr
    session = read_results(tmp_path / "results.jsonl").sessions()[-1]
    assert session["scores"] == [f"LPIPS: {missing} lpips`", *why_not]
    assert f"LPIPS: {missing} lpips" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["layers", "--ray", "local", "--minutes", "5"], "--minutes is for one machine"),
        (["layers", "--untimed", "--retime"], "--untimed makes rows without times"),
        (["layer"], "no study called 'layer'"),
        (["layers", "report"], "stands alone"),
        (["layers", "--method", "svg3"], "no method called 'svg3'"),
        (["layers", "--prompts", "none.txt"], "cannot read the prompts"),
        (["layers", "--model", "wan2.1-t2v-1.3b"], "give --prompts FILE"),
        (["layers", "--height", "32"], "together"),
        (["layers", "--count", "99"], "--count must be 1 to the 16 prompts"),
        (["report"], "there are no results"),
    ],
)
def test_bad_input_is_refused_before_work(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = study(*arguments, "--out", str(tmp_path / "out"))
    assert isinstance(done.exception, ConfigError) and re.search(message, str(done.exception))
    assert list(tmp_path.iterdir()) == []


def test_a_size_that_the_pipeline_refuses_leaves_nothing(tmp_path: Path) -> None:
    sizes = ["--steps", "1", "--frames", "9", "--height", "33", "--width", "48"]
    done = study("layers", *sizes, "--count", "1", "--out", str(tmp_path))
    assert isinstance(done.exception, ConfigError) and "refuses this video" in str(done.exception)
    assert not (tmp_path / "results.jsonl").exists()


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a cat\n")
    model = str(tmp_path / "no-model")
    done = study(
        "layers", "--model", model, "--prompts", str(prompts), "--out", str(tmp_path / "o")
    )
    assert isinstance(done.exception, ModelError) and not (tmp_path / "o").exists()


def test_results_of_another_version_or_run_are_left_alone(out: Path, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"svoo study": 99, "about": {}}\n')
    for names in ("layers", "report"):
        done = study(names, "--out", str(tmp_path))
        assert isinstance(done.exception, ConfigError) and "version 99" in str(done.exception)
    shutil.copy(out / "results.jsonl", path)
    before = path.read_bytes()
    other = [word if word != "3" else "4" for word in SMALL]
    done = study("layers", "--out", str(tmp_path), *other)
    assert isinstance(done.exception, ConfigError) and "steps: 3 there, 4 now" in str(
        done.exception
    )
    assert path.read_bytes() == before


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_plays_and_fits_in_a_browser(out: Path, width: int) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--virtual-time-budget=8000", f"--window-size={width},900"]
    done = subprocess.run(
        [*command, (out / "report.html").as_uri()],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    videos = done.stdout.count("<video ")
    assert videos > 1 and f'data-playable="{videos}"' in done.stdout
    assert 'data-fits="true"' in done.stdout
