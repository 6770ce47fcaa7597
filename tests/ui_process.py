"""`svoo ui` as a process of its own, with the embedded model, as users start it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from ui_fakes import until

PROMPT = "a red circle moves left over a checkered floor"
SMALL = {"size": "64x48", "num_frames": 5, "steps": 2, "seed": 7}
LONG = SMALL | {"steps": 100}


@dataclass
class Running:
    """A server that answers: its link, its API and its process."""

    link: str
    client: httpx2.Client
    process: "subprocess.Popen[str]"

    def post(self, **fields: Any) -> str:
        answer = self.client.post("/v1/videos", json={"prompt": PROMPT} | fields)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def wait(self, name: str, true: Any) -> Any:
        def there() -> Any:
            found = self.client.get(f"/v1/videos/{name}").json()
            return found if true(found) else None

        return until(there, 180)

    def end(self) -> int:
        """Send SIGTERM and return how it ended."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


@contextmanager
def svoo_ui(out: Path, *options: str) -> Iterator[Running]:
    """Start `svoo ui` on a free port and wait until it answers."""
    command = [sys.executable, "-m", "svoo", "ui", "--port", "0", "--out", str(out), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            assert words, "svoo ui did not start"
            address, _, token = words[-1].partition("#token=")
            headers = {"authorization": f"Bearer {token}"} if token else {}
            with httpx2.Client(base_url=address, headers=headers, timeout=60) as client:
                until(lambda: client.get("/health").status_code == 200)
                yield Running(words[-1], client, process)
        finally:
            process.kill()
