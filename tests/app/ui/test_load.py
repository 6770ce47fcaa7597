"""200 people at once, each with a picture: nobody's video is lost, and memory is bounded."""

import asyncio
import base64
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil  # type: ignore[import-untyped]
from PIL import Image
from ui_fakes import PATIENCE, until

PEOPLE = 200
MORE_MEMORY = 120 << 20  # bytes; the bodies together have about as many, pictures unpacked more


def noise() -> str:
    """A picture that no compression makes smaller, as a data URL."""
    pixels = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def test_200_requests_at_once(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "ui_fakes.py"
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            at = server.stdout.readline().strip()
            asyncio.run(_ask(at, server.pid))
        finally:
            server.terminate()
    assert len(list(tmp_path.glob("*/video.mp4"))) == PEOPLE


async def _ask(at: str, process: int) -> None:
    body = {"prompt": "a fox", "input_reference": noise(), "steps": 1}
    limits = httpx2.Limits(max_connections=PEOPLE)
    memory = psutil.Process(process).memory_info
    async with httpx2.AsyncClient(base_url=at, timeout=PATIENCE * 5, limits=limits) as client:
        await client.post("/v1/videos", json=body | {"prompt": ""})  # imports are done now
        before, most = memory().rss, 0

        async def ask(seed: int) -> Any:
            nonlocal most
            answer = await client.post("/v1/videos", json=body | {"seed": seed})
            most = max(most, memory().rss)
            return answer

        answers = await asyncio.gather(*map(ask, range(PEOPLE)))
    assert [answer.status_code for answer in answers] == [200] * PEOPLE
    assert len({answer.json()["id"] for answer in answers}) == PEOPLE
    with httpx2.Client(base_url=at, timeout=PATIENCE) as reader:

        def made() -> list[dict[str, Any]] | None:
            first = reader.get("/v1/videos", params={"limit": 100}).json()
            second = reader.get(
                "/v1/videos", params={"limit": 100, "after": first["last_id"]}
            ).json()
            rows = [*first["data"], *second["data"]]
            return rows if all(row["status"] == "completed" for row in rows) else None

        rows = until(made, PATIENCE * 5)
    seeds = [row["settings"]["seed"] for row in rows]
    assert sorted(seeds) == list(range(PEOPLE))
    sys.stdout.write(f"\n{PEOPLE} at once: {(most - before) / 2**20:.0f} MB more memory\n")
    assert most - before < MORE_MEMORY
