"""Running the server: its address, its token, its end."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import threading
import webbrowser
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI

from svoo.errors import ConfigError

_SHORTEST_TOKEN = 16
_CONNECTIONS = 512  # at once; more are refused with 503
_PATIENCE = 10  # seconds for answers under way when the server ends


def is_local(host: str) -> bool:
    """Return whether an address is reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def choose_token(host: str, token: str | None) -> str | None:
    """Return the token to ask for: the one given, a new one for an open address, or none."""
    if token is None:
        return None if is_local(host) else secrets.token_urlsafe(24)
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise ConfigError(
            f"--token must have at least {_SHORTEST_TOKEN} plain letters, got {len(token)}; leave "
            "it out and one is made"
        )
    return token


def bind(host: str, port: int) -> socket.socket:
    """Take the address before anything is loaded; port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_CONNECTIONS)  # who comes while the model is loaded waits
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {error}; choose another with --port, 0 for "
            "any that is free"
        ) from error
    return listener


def address(listener: socket.socket, token: str | None) -> str:
    """Return what to open in a browser; the token is behind a #, which is never sent or logged."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + ("" if token is None else f"#token={quote(token, safe='')}")


def serve(app: FastAPI, listener: socket.socket, *, open_page: str | None = None) -> None:
    """Answer until SIGINT or SIGTERM, then let the application end in order."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_PATIENCE,
    )
    if open_page is not None:  # when this thread is ready to answer, more or less
        threading.Timer(1, webbrowser.open, [open_page]).start()
    uvicorn.Server(config).run(sockets=[listener])
