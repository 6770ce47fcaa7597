"""Results of studies made up for tests."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from svoo.studies.results import Results
from svoo.studies.runs import RunRow

ABOUT: dict[str, Any] = {
    "model": "mini", "weights": "w", "profile": None, "large": "l", "small": "s", "steps": 4,
    "seed": 0, "guidance": None, "negative_prompt": None, "dtype": None, "lora": None,
}  # fmt: skip
ROW = RunRow(
    prompt="p", machine="m", tokens=100, steps=4, seed=0, method="svg2", config={"method": "svg2"},
    backends=["cpp"], psnr=30.0, ssim=0.9, lpips=None, density=0.3, work=0.1, seconds=1.0,
    dense_seconds=2.0, total_seconds=1.5, dense_total_seconds=2.5, planning=0.1, attention=0.01,
    dense_attention=0.03, scores={},
)  # fmt: skip


def empty() -> Results:
    """Results without a line."""
    return Results(dict(ABOUT))


def add_run(
    results: Results, study: str, group: str, setting: str, prompt: str, **facts: Any
) -> None:
    """Add a run and a study's row of it."""
    key = f"{group}{setting}{prompt}"
    results.add("run", key, asdict(replace(ROW, prompt=prompt, **facts)))
    row = {"group": group, "setting": setting, "run": key}
    results.add(study, f"{key} | row", row)


def add_runs(results: Results, study: str, group: str, **settings: tuple[float, float]) -> None:
    """Add runs of six prompts: settings by name with their PSNR and speed-up, each a little
    different from prompt to prompt."""
    for name, (psnr, speed_up) in settings.items():
        for number in range(6):
            facts = {"psnr": psnr + 0.1 * number, "seconds": 2.0 / (speed_up + 0.01 * number)}
            add_run(results, study, group, name.replace("_", " "), f"prompt {number}", **facts)
