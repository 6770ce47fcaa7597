import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from ui_fakes import FakeMaker, answering

from svoo.app.ui.guard import COOKIE
from svoo.app.ui.server import make_app
from svoo.app.ui.settings import Limits
from svoo.app.ui.store import Store

TOKEN = "a token that nobody can guess"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = Store(tmp_path_factory.mktemp("ui"))
    limits = Limits(upload=3 << 20)
    with answering(make_app(FakeMaker(), store, limits=limits)) as address:
        yield address


@pytest.fixture(scope="module")
def open_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    app = make_app(FakeMaker(), Store(tmp_path_factory.mktemp("ui")), token=TOKEN, local=False)
    with answering(app) as address:
        yield address


def code(answer: httpx2.Response) -> Any:
    return answer.json()["error"]["code"]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "["])
def test_another_name_for_this_machine_is_not_answered(local: str, host: str) -> None:
    """DNS rebinding: a site whose name leads to 127.0.0.1 says so in the Host header."""
    for path in ("/", "/v1/videos", "/health"):
        answer = httpx2.get(local + path, headers={"host": host})
        assert answer.status_code in (400, 421), host
    for name in ("localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:5"):
        assert httpx2.get(f"{local}/health", headers={"host": name}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_pages_of_other_sites_may_do_nothing(local: str, headers: dict[str, str]) -> None:
    body = {"prompt": "a fox"}
    assert code(httpx2.post(f"{local}/v1/videos", json=body, headers=headers)) == "wrong_origin"
    assert code(httpx2.get(f"{local}/v1/videos", headers=headers)) == "wrong_origin"
    asked = httpx2.options(f"{local}/v1/videos", headers=headers)
    assert asked.status_code >= 400 and "access-control-allow-origin" not in asked.headers
    assert httpx2.get(f"{local}/v1/videos").json()["data"] == []
    linked = httpx2.get(local, headers={"sec-fetch-site": "cross-site"})
    assert linked.status_code == 200  # a link to the page is no harm


def test_the_page_itself_may(local: str) -> None:
    headers = {"origin": local, "sec-fetch-site": "same-origin"}
    assert httpx2.get(f"{local}/v1/videos", headers=headers).status_code == 200


def test_every_answer_is_hardened(local: str) -> None:
    for path in ("/", "/v1/models", "/nowhere"):
        headers = httpx2.get(local + path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in headers or "uvicorn" in headers["server"]


def test_a_body_that_is_too_large_is_refused_by_what_it_says_and_by_what_it_is(
    local: str,
) -> None:
    large = b" " * (6 << 20)
    kind = {"content-type": "application/json"}
    host, port = local.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as line:  # clients would not lie so
        lines = ("POST /v1/videos HTTP/1.1", f"host: {host}", "content-length: 99999999999")
        line.sendall("\r\n".join((*lines, "", "")).encode())
        assert line.recv(100).startswith(b"HTTP/1.1 413 ")
    pieces = (large[at : at + 65536] for at in range(0, len(large), 65536))  # of unknown length
    try:
        answer = httpx2.post(f"{local}/v1/videos", content=pieces, headers=kind)
    except httpx2.TransportError:  # the server hung up before everything was sent
        return
    assert (answer.status_code, code(answer)) == (413, "too_large")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": TOKEN},
        {"cookie": f"{COOKIE}={TOKEN.replace(' ', '')}"},
        {"cookie": "\x7f=;;"},
    ],
)
def test_without_the_token_nothing_is_told(open_address: str, headers: dict[str, str]) -> None:
    for path in ("/v1/videos", "/v1/models", "/openapi.json", "/nowhere", "/session"):
        answer = httpx2.get(open_address + path, headers=headers)
        assert (answer.status_code, code(answer)) == (401, "token_needed")
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/", "/ui.js", "/ui.css", "/health"):
        assert httpx2.get(open_address + path, headers=headers).status_code == 200


def test_the_token_opens_and_becomes_a_cookie_for_the_page(open_address: str) -> None:
    bearer = {"authorization": f"bearer {TOKEN}", "host": "any.name.example"}
    assert httpx2.get(f"{open_address}/v1/videos", headers=bearer).status_code == 200
    with httpx2.Client(base_url=open_address) as page:
        entered = page.post("/session", headers={"authorization": f"Bearer {TOKEN}"})
        assert entered.status_code == 204
        cookie = entered.headers["set-cookie"]
        assert TOKEN not in cookie and "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert page.get("/v1/videos").status_code == 200
        forged = page.get("/v1/videos", headers={"origin": "https://evil.example"})
        assert forged.status_code == 403  # a cookie does not help another site
