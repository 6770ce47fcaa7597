import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import httpx2
import pytest

from svoo.app.ui.serve import address, bind, choose_token, is_local
from svoo.errors import ConfigError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_addresses_of_this_machine_need_no_token(host: str) -> None:
    assert is_local(host) and choose_token(host, None) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "my.machine", ""])
def test_others_get_one(host: str) -> None:
    first, second = choose_token(host, None), choose_token(host, None)
    assert first and second and first != second and len(first) >= 32
    assert choose_token(host, "0123456789abcdef") == "0123456789abcdef"


@pytest.mark.parametrize("token", ["", "short", "é" * 20, "0123456789\nabcdef"])
def test_weak_tokens_are_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="--token must have at least 16 plain letters"):
        choose_token("0.0.0.0", token)


def test_the_link_holds_any_token() -> None:
    with bind("127.0.0.1", 0) as listener:
        link = address(listener, "a+b&c%d e")
    assert parse_qs(link.split("#")[1]) == {"token": ["a+b&c%d e"]}  # as URLSearchParams reads it


def test_an_address_that_is_taken_is_refused_with_what_to_do() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert address(taken, None) == f"http://127.0.0.1:{port}/"
        assert address(taken, "secret").endswith("/#token=secret")
        with pytest.raises(ConfigError, match="choose another with --port"):
            bind("127.0.0.1", port)
    with pytest.raises(ConfigError, match="cannot listen on no.such.name.invalid"):
        bind("no.such.name.invalid", 0)
    if socket.has_ipv6:
        with bind("::1", 0) as listener:
            assert address(listener, None).startswith("http://[::1]:")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    script = Path(__file__).parents[2] / "ui_fakes.py"
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        yield running, running.stdout.readline().strip().rstrip("/")
        running.kill()


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_signal_ends_it_in_order(process: tuple[subprocess.Popen[str], str]) -> None:
    running, at = process
    assert httpx2.get(f"{at}/health").json() == {"status": "ok"}
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) in (0, -signal.SIGTERM)
