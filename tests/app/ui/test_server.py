import base64
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from PIL import Image
from ui_fakes import FakeMaker, answering, until

from svoo.app.ui.server import make_app
from svoo.app.ui.settings import Limits
from svoo.app.ui.store import Store


class Server:
    def __init__(self, folder: Path, maker: FakeMaker, address: str) -> None:
        self.folder, self.maker = folder, maker
        self.client = httpx2.Client(base_url=address, timeout=60)

    def post(self, **fields: Any) -> httpx2.Response:
        body = json.dumps({"prompt": "a fox"} | fields)  # spells half letters too: \\ud800
        return self.client.post(
            "/v1/videos", content=body, headers={"content-type": "application/json"}
        )

    def wait(self, name: str, status: str = "completed") -> Any:
        def there() -> Any:
            found = self.client.get(f"/v1/videos/{name}").json()
            return found if found["status"] == status else None

        return until(there)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    maker = FakeMaker()
    app = make_app(maker, Store(tmp_path / "ui"), limits=Limits(waiting=20))
    with answering(app) as address:
        server = Server(tmp_path / "ui", maker, address)
        with server.client:
            yield server


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 10), "red").save(file, "PNG")
    return file.getvalue()


def test_a_video_from_asking_to_deleting(server: Server) -> None:
    asked = server.post(size="96x48", seconds="0.8", seed=5, steps=3)
    assert asked.status_code == 200 and asked.json()["status"] == "queued"
    assert (asked.json()["size"], asked.json()["seconds"]) == ("96x48", "0.812")
    name = asked.json()["id"]
    done = server.wait(name)
    assert done["progress"] == 100 and done["settings"]["seed"] == 5
    content = server.client.get(f"/v1/videos/{name}/content")
    assert content.content == b"a video" and content.headers["content-type"] == "video/mp4"
    part = server.client.get(f"/v1/videos/{name}/content", headers={"range": "bytes=2-4"})
    assert (part.status_code, part.content) == (206, b"vid")  # players jump about
    assert server.client.get("/v1/videos").json()["data"][0]["id"] == name
    assert server.client.delete(f"/v1/videos/{name}").json()["deleted"]
    assert server.client.get(f"/v1/videos/{name}").status_code == 404
    assert list(server.folder.iterdir()) == []


def test_forms_with_a_picture_and_the_picture_again(server: Server) -> None:
    fields = {"prompt": "it jumps", "seed": "3", "size": "64x64"}
    files = {"input_reference": ("../../x.png", picture(), "image/png")}
    first = server.client.post("/v1/videos", data=fields, files=files).json()
    assert first["settings"]["picture"] and server.wait(first["id"])
    kept = server.client.get(f"/v1/videos/{first['id']}/content", params={"variant": "picture"})
    assert Image.open(io.BytesIO(kept.content)).size == (20, 10)
    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    again = [
        server.post(**fields, picture_of=first["id"]).json(),
        server.post(**fields, input_reference=url).json(),
        server.post(**fields, input_reference={"image_url": url}).json(),
    ]
    for row in again:
        assert row["settings"] == first["settings"]
        assert (server.folder / row["id"] / "picture.png").read_bytes() == kept.content
    plain = server.post().json()["id"]
    assert server.post(picture_of=plain).status_code == 404
    assert server.post(picture_of="../../etc").status_code == 404
    names = {path.name for path in server.folder.rglob("*")}
    assert not any("x.png" in name for name in names)


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"size": "9999x16"}, 400, "at most 1920"),
        ({"steps": 101}, 400, "at most 100"),
        ({"prompt": "a" * 5000}, 400, "at most 4,000"),
        ({"prompt": "impossible"}, 400, "prompt asks for the impossible"),
        ({"model": "sora-2"}, 404, "has loaded fake, not sora-2"),
        ({"path": "/etc/passwd"}, 400, "no field is called 'path'"),
        ({"prompt": "\ud800"}, 400, "letters that UTF-8 cannot write"),
        ({"input_reference": {"image_url": 5}}, 400, "must be a picture"),
    ],
)
def test_refusals(server: Server, fields: dict[str, Any], status: int, message: str) -> None:
    refused = server.post(**fields)
    assert refused.status_code == status and message in refused.json()["error"]["message"]
    assert server.client.get("/v1/videos").json()["data"] == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/videos/none",
        "/v1/videos/..%2f..%2fetc%2fpasswd",
        "/v1/videos/%2e%2e/content",
        "/v1/videos/none/content",
        "/../../etc/passwd",
        "/templates/ui.html",
    ],
)
def test_no_path_reaches_the_disk(server: Server, path: str) -> None:
    answer = server.client.get(path)
    assert answer.status_code == 404 and "error" in answer.json()


def test_contents_that_are_not_there(server: Server) -> None:
    server.maker.gate.clear()
    name = server.post().json()["id"]
    path = f"/v1/videos/{name}/content"
    assert server.client.get(path).status_code == 409
    assert server.client.get(path, params={"variant": "../job.json"}).status_code == 400
    server.maker.gate.set()
    server.wait(name)
    missing = server.client.get(path, params={"variant": "dense"})
    assert missing.status_code == 404 and "has no dense" in missing.json()["error"]["message"]
    for query in ({"limit": 0}, {"limit": 101}, {"order": "sideways"}, {"after": "none"}):
        assert server.client.get("/v1/videos", params=query).status_code in (400, 404)


def test_cancelling_over_http(server: Server) -> None:
    server.maker.gate.clear()
    running, waiting = (server.post().json()["id"] for _ in range(2))
    server.wait(running, "in_progress")
    for name in (waiting, running):
        server.client.post(f"/v1/videos/{name}/cancel")
        assert server.wait(name, "failed")["error"]["code"] == "cancelled"
    assert server.client.post("/v1/videos/none/cancel").status_code == 404


def test_more_requests_at_once_than_may_wait_are_made_or_told_so(server: Server) -> None:
    server.maker.gate.clear()
    with ThreadPoolExecutor(60) as people:
        answers = list(people.map(lambda seed: server.post(seed=seed), range(60)))
    accepted = [answer.json()["id"] for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert 20 <= len(accepted) <= 21 and len(accepted) + len(refused) == 60
    assert all(answer.headers["retry-after"] for answer in refused)
    server.maker.gate.set()
    for name in accepted:
        server.wait(name)
    assert len(server.maker.made) == len(accepted)


def test_what_the_page_and_clients_need_to_know(server: Server) -> None:
    row = server.client.get("/v1/models").json()["data"][0]
    assert row["id"] == "fake" and row["facts"]["steps"] == 4 and row["limits"]["waiting"] == 20
    schema = server.client.get("/openapi.json").json()
    body = schema["paths"]["/v1/videos"]["post"]["requestBody"]["content"]
    assert set(body) == {"application/json", "multipart/form-data"}
    assert "prompt" in json.dumps(body)
    for path, calls in schema["paths"].items():
        for call in calls.values():
            told = set(call["responses"])
            assert {"4XX", "5XX"} <= told and "422" not in told, path
    refusal = schema["components"]["schemas"]["Trouble"]["properties"]
    refused = server.post(size="none").json()["error"]
    assert set(refusal) == set(refused) == {"message", "type", "param", "code"}
    sent = schema["paths"]["/v1/videos/{name}/content"]["get"]["responses"]["200"]["content"]
    assert set(sent) == {"video/mp4", "image/webp", "image/png"}
    page = server.client.get("/").text
    assert "http://" not in page and "https://" not in page  # nothing from elsewhere
    for name in ("/ui.js", "/ui.css", "/favicon.svg"):
        assert name in page and server.client.get(name).status_code == 200
    assert server.client.get("/docs").status_code == 404  # it would load scripts from elsewhere


def test_a_failure_of_our_own_tells_nothing_of_the_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = FakeMaker()
    monkeypatch.setattr(maker, "check", lambda _settings: 1 / 0)
    with answering(make_app(maker, Store(tmp_path))) as address:
        answer = httpx2.post(f"{address}/v1/videos", json={"prompt": "a fox"})
    assert answer.status_code == 500 and "division" not in answer.text
