import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import pytest

from tools.comfyui.server import Server, find_python, serve


def test_the_environment_is_found_in_or_beside_a_checkout(tmp_path: Path) -> None:
    checkout = tmp_path / "ComfyUI"
    assert find_python(checkout) == sys.executable
    for folder in (tmp_path / "venv", checkout / "venv"):
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").touch()
        assert find_python(checkout) == str(folder / "bin" / "python")


def test_what_does_not_start_is_told_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("raise SystemExit('no frontend here')")
    with (
        pytest.raises(RuntimeError, match="did not start(.|\\n)*no frontend here"),
        serve(tmp_path, sys.executable, tmp_path / "base"),
    ):
        pass
    assert (tmp_path / "base" / "custom_nodes" / "svoo" / "nodes.py").exists()


def test_workflows_are_sent_and_their_errors_raised(tmp_path: Path) -> None:
    answers: dict[str, Any] = {
        "/prompt": {"prompt_id": "7"},
        "/history/7": {"7": {"status": {"status_str": "success"}, "outputs": {"1": "text"}}},
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answers[self.path]).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        server = Server(f"http://127.0.0.1:{http.server_port}", tmp_path, Mock())
        assert server.run({}) == {"1": "text"}
        answers["/history/7"]["7"]["status"] = {"status_str": "error", "messages": ["bad node"]}
        with pytest.raises(RuntimeError, match="the workflow failed: bad node"):
            server.run({})
        http.shutdown()
