"""A server with a maker that needs no model, in a thread or (`python ui_fakes.py FOLDER`) as a
process, for tests of everything around the making."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from PIL import Image

from svoo.app.ui.queue import OnProgress, Outcome
from svoo.app.ui.serve import address, bind, serve
from svoo.app.ui.server import make_app
from svoo.app.ui.settings import Limits, ModelFacts, Settings, complete, read_ask
from svoo.app.ui.store import Store
from svoo.errors import ConfigError

FACTS = ModelFacts(
    name="fake",
    width=64,
    height=32,
    frames=9,
    steps=4,
    guidance=3.0,
    side_step=16,
    frame_step=4,
    takes_picture=True,
    methods=("svoo", "dense"),
    qualities=("fast", "careful"),
)
PATIENCE = 60  # seconds: tests run on busy machines


def settings(**fields: Any) -> Settings:
    """What the fake maker is asked for."""
    return complete(read_ask({"prompt": "a fox"} | fields), FACTS, Limits(), picture=False)


class FakeMaker:
    """Writes a word instead of a video; `gate` holds its steps back until it is set."""

    facts = FACTS

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.made: list[int] = []  # seeds, in order
        self.at_once = 0

    def check(self, settings: Settings) -> None:
        if settings.prompt == "impossible":
            raise ConfigError("--prompt asks for the impossible")

    def make(self, settings: Settings, folder: Path, on_progress: OnProgress) -> Outcome:
        self.at_once += 1
        assert self.at_once == 1, "one at a time"
        try:
            for step in range(settings.steps):
                on_progress("denoising", step, settings.steps)
                while not self.gate.wait(0.01):
                    on_progress("denoising", step, settings.steps)
            if settings.prompt == "broken":
                (folder / "video.mp4").write_bytes(b"half")
                raise RuntimeError("out of luck")
            (folder / "video.mp4").write_bytes(b"a video")
            for name in ("thumbnail.webp", "density.png"):
                Image.new("RGB", (8, 8)).save(folder / name)
            self.made.append(settings.seed)
            return Outcome(
                {"seconds": {"denoising": 1.0, "total": 2.0}, "density": 0.5}, ["a note"]
            )
        finally:
            self.at_once -= 1


@contextmanager
def answering(app: FastAPI) -> Iterator[str]:
    """Run an application on a free port in a thread; give its address."""
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started)
        yield address(listener, None).rstrip("/")
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def until(true: Any, seconds: float = PATIENCE) -> Any:
    """Wait for something to become true, and return it."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


if __name__ == "__main__":
    taken = bind("127.0.0.1", 0)
    application = make_app(FakeMaker(), Store(Path(sys.argv[1])))
    sys.stdout.write(address(taken, None) + "\n")
    sys.stdout.flush()
    serve(application, taken)
