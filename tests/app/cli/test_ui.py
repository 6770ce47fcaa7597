import io
import json
import socket
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from ui_process import LONG, PROMPT, SMALL, svoo_ui

from svoo.app.cli import app, ui
from svoo.errors import ConfigError, FileError
from svoo.metrics.video import read_video
from svoo.storage import locked


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["ui", *arguments])


def test_help_has_examples_and_no_options_of_one_video() -> None:
    shown = run("--help").output
    assert "svoo ui --open" in shown and "--offload" in shown and "--seed" not in shown


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["--host", "0.0.0.0", "--token", "short"], ConfigError, "at least 16 plain letters"),
        (["--host", "no.such.name.invalid"], ConfigError, "cannot listen on no.such.name"),
        (["--dtype", "float8"], ConfigError, "--dtype must be one of"),
    ],
)
def test_bad_options_are_refused_before_a_model_is_loaded(
    arguments: list[str], kind: type[Exception], message: str, tmp_path: Path
) -> None:
    refused = run("--out", str(tmp_path / "ui"), *arguments)
    assert isinstance(refused.exception, kind) and message in str(refused.exception)
    assert not (tmp_path / "ui").exists()


def test_a_port_or_folder_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused = run("--port", str(taken.getsockname()[1]), "--out", str(tmp_path))
        assert isinstance(refused.exception, ConfigError)
        assert "choose another with --port" in str(refused.exception)
    out = tmp_path / "ui"
    with locked(out):
        refused = run("--port", "0", "--out", str(out))
    assert isinstance(refused.exception, FileError)
    assert "another svoo is writing" in str(refused.exception)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui, "find_spec", lambda name: None if name == "uvicorn" else name)
    refused = run()
    assert "uvicorn not installed: pip install 'svoo[ui]'" in str(refused.exception)


def test_openais_client_makes_a_video_and_sigterm_marks_the_next(tmp_path: Path) -> None:
    """The embedded model, an open address with its token, OpenAI's own client, and a restart."""
    out = tmp_path / "ui"
    with svoo_ui(out, "--host", "127.0.0.1", "--token", "a-long-enough-token") as server:
        assert "#token=a-long-enough-token" in server.link
        done = _with_openais_client(server.link.partition("#")[0], tmp_path / "video.mp4")
        running, waiting = server.post(**LONG), server.post(**LONG)
        server.wait(running, lambda job: job["step"] >= 1)
        assert server.end() in (0, -15)
    records = {path.parent.name: json.loads(path.read_text()) for path in out.glob("*/job.json")}
    assert {name: record["status"] for name, record in records.items()} == {
        done: "completed",
        running: "failed",
        waiting: "failed",
    }
    assert records[running]["error"][0] == "interrupted"
    assert [path.parent.name for path in out.glob("*/video.mp4")] == [done]
    with svoo_ui(out) as again:  # here without a token
        rows = again.client.get("/v1/videos").json()["data"]
        assert [row["id"] for row in rows] == [waiting, running, done]
        settings = next(row["settings"] for row in rows if row["id"] == done)
        fields = SMALL | {"prompt": settings["prompt"], "seed": settings["seed"]}
        repeated = again.post(**fields)
        again.wait(repeated, lambda job: job["status"] == "completed")
    videos = [(out / name / "video.mp4").read_bytes() for name in (done, repeated)]
    assert videos[0] == videos[1]  # the same settings give the same video, after a restart too


def _with_openais_client(address: str, out: Path) -> str:
    import openai

    with (
        warnings.catch_warnings(),
        openai.OpenAI(base_url=f"{address}v1", api_key="a-long-enough-token") as client,
    ):
        warnings.simplefilter("ignore", DeprecationWarning)  # OpenAI gave its own server up
        assert [model.id for model in client.models.list()] == ["mini"]
        size: Any = SMALL["size"]
        more = {name: value for name, value in SMALL.items() if name != "size"}
        video = client.videos.create_and_poll(
            prompt=PROMPT, model="mini", size=size, extra_body=more, poll_interval_ms=100
        )
        assert (video.status, video.progress, video.size) == ("completed", 100, "64x48")
        content = client.videos.download_content(video.id).read()
        out.write_bytes(content)
        assert read_video(out).shape == (5, 48, 64, 3)
        small = client.videos.download_content(video.id, variant="thumbnail").read()
        assert small.startswith(b"RIFF")
        other = client.videos.create(prompt=PROMPT, seconds="4", size=size)
        assert other.seconds == "4.06"
        assert [row.id for row in client.videos.list(limit=1)] == [other.id, video.id]
        assert client.videos.delete(other.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.videos.retrieve(other.id)
        with pytest.raises(openai.BadRequestError, match="at most 1920"):
            client.videos.create(prompt=PROMPT, size="9999x16")  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError, match="no picture that can be read"):
            client.videos.create(prompt=PROMPT, input_reference=io.BytesIO(b"no picture"))
        with pytest.raises(openai.AuthenticationError, match="send the server's token"):
            client.with_options(api_key="wrong").videos.list()
        return str(video.id)
