"""A ComfyUI process with our node pack, spoken to by HTTP."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKS = {"svoo": ROOT / "integrations" / "comfyui", "svoo_tests": ROOT / "tools/comfyui/loader"}
START_SECONDS = 600
# A torchvision built for CUDA does not import beside a CPU torch, unless these are there.
_DEFINE_OPERATORS = """
import torch
for name in ("nms", "qnms"):
    torch.library.define(
        f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    )
"""
_RUN_MAIN = """
import runpy, sys
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass
class Server:
    """A running ComfyUI."""

    address: str
    folder: Path
    process: subprocess.Popen[bytes]

    def ask(self, path: str, body: Any = None) -> Any:
        """Return the JSON answer to a GET, or to a POST of a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"ComfyUI refused {path}: {error.read().decode()}") from error

    def run(self, workflow: dict[str, Any]) -> dict[str, Any]:
        """Run a workflow; return what its nodes put out, by number. Raises with the node's own
        error."""
        return self.wait(self.send(workflow))

    def send(self, workflow: dict[str, Any]) -> str:
        """Send a workflow; return its number."""
        number: str = self.ask("/prompt", {"prompt": workflow})["prompt_id"]
        return number

    def wait(self, number: str, seconds: float = 1800) -> dict[str, Any]:
        """Wait for a workflow; return what its nodes put out."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            history = self.ask(f"/history/{number}")
            if number in history:
                status = history[number]["status"]
                if status["status_str"] != "success":
                    raise RuntimeError(f"the workflow failed: {status['messages'][-1]}")
                found: dict[str, Any] = history[number]["outputs"]
                return found
            if self.process.poll() is not None:
                raise RuntimeError(f"ComfyUI ended:\n{self.log()[-4000:]}")
            time.sleep(0.5)
        raise TimeoutError(f"ComfyUI took more than {seconds} s")

    def log(self) -> str:
        """Return what ComfyUI has logged."""
        return (self.folder / "log.txt").read_text(errors="replace")


def find_python(checkout: Path) -> str:
    """Return the interpreter of an environment beside or in a checkout, else this one."""
    for folder in (checkout / "venv", checkout / ".venv", checkout.parent / "venv"):
        if (folder / "bin" / "python").exists():
            return str(folder / "bin" / "python")
    return sys.executable


@contextmanager
def serve(checkout: Path, python: str, folder: Path) -> Iterator[Server]:
    """Run ComfyUI on the CPU with our packs, its files in a folder of its own; stop it after."""
    for name in ("custom_nodes", "models", "input", "output", "user", "temp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, pack in PACKS.items():
        (folder / "custom_nodes" / name).symlink_to(pack)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    works = subprocess.run([python, "-c", "import torchvision"], capture_output=True, check=False)
    start = _RUN_MAIN if works.returncode == 0 else _DEFINE_OPERATORS + _RUN_MAIN
    command = [python, "-c", start, "main.py", "--cpu", "--use-pytorch-cross-attention"]
    command += ["--base-directory", str(folder), "--port", str(port), "--disable-api-nodes"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=checkout, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    server = Server(f"http://127.0.0.1:{port}", folder, process)
    try:
        _wait(server)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait(server: Server) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if server.process.poll() is not None:
            raise RuntimeError(f"ComfyUI did not start:\n{server.log()[-4000:]}")
        try:
            server.ask("/system_stats")
        except (OSError, RuntimeError):
            time.sleep(0.5)
        else:
            return
    raise TimeoutError(f"ComfyUI did not answer within {START_SECONDS} s:\n{server.log()[-2000:]}")
