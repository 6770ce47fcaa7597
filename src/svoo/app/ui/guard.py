"""Who may talk to the server: hosts, origins, the token, and the size of what is sent."""

from __future__ import annotations

import hashlib
import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from svoo.app.ui.problems import Problem

COOKIE = "svoo_ui"
_LOCAL = ("127.0.0.1", "localhost", "::1")
_OPEN = ("/", "/ui.css", "/ui.js", "/favicon.svg", "/health")  # hold nothing of anybody
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob:; media-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Guard:
    """An ASGI layer around the application, through which every request has to pass."""

    def __init__(self, app: ASGIApp, *, token: str | None, local: bool, largest: int) -> None:
        """Guard `app`. `local`: only addresses of this machine are answered to, so that no web
        site can reach it by a name of its own; `largest`: bytes of a body."""
        self._app, self._token, self._local, self._largest = app, token, local, largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        too_large = Problem(
            413, "too_large", f"a request may have {self._largest >> 20} MB at most"
        )
        taken = 0

        async def bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._largest:
                raise too_large
            return message

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        try:
            self._check(scope["path"], Headers(scope=scope))
        except Problem as problem:
            answer = JSONResponse(problem.as_dict(), problem.status, _challenge(problem))
            await answer(scope, receive, hardened)
        else:
            await self._app(scope, bounded, hardened)

    def _check(self, path: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if self._local and _name(host) not in _LOCAL:
            raise Problem(
                421, "wrong_host", "this server answers to 127.0.0.1 and localhost alone"
            )
        origin = headers.get("origin")
        elsewhere = origin is not None and _place(origin) != host.lower()
        # A page may be linked to from elsewhere; what it shows and does is its own affair.
        embedded = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if elsewhere or (embedded and path not in _OPEN):
            raise Problem(403, "wrong_origin", "pages of other sites may not use this server")
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > self._largest:
            raise Problem(413, "too_large", f"a request may have {self._largest >> 20} MB at most")
        if self._token is not None and path not in _OPEN and not self._knows_token(headers):
            raise Problem(
                401, "token_needed", "send the server's token: Authorization: Bearer TOKEN"
            )

    def _knows_token(self, headers: Headers) -> bool:
        token = self._token or ""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(given.strip(), token):
            return True
        return _same(_cookie(headers), cookie_value(token))


def cookie_value(token: str) -> str:
    """Return what the page's cookie holds: not the token, which other ports would see."""
    return hmac.new(token.encode(), b"svoo ui", hashlib.sha256).hexdigest()


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def _name(host: str) -> str:
    """Return a Host header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _place(origin: str) -> str | None:
    """Return the name and port of an Origin header, None where it is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _challenge(problem: Problem) -> dict[str, str]:
    return {"www-authenticate": "Bearer"} if problem.status == 401 else {}
