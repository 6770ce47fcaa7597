"""What a decibel means: sparse videos beside dense ones of another seed, number of steps or
precision."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from svoo.metrics.compare import compare_videos
from svoo.studies.base import (
    TABLES,
    Cell,
    Claim,
    Job,
    Plot,
    Section,
    Skipped,
    Table,
    as_png,
    per_input,
)
from svoo.studies.comparisons import say_difference, say_interval, verdict_of
from svoo.studies.lab import Lab
from svoo.studies.results import Results
from svoo.studies.runs import Setting
from svoo.studies.settings import OURS, PAPER, main_settings
from svoo.studies.statistics import interval, paired

_PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); (x @ x).sum().item()"
SEED, STEP, HALF = "another seed", "one step less", "bfloat16"


@dataclass(frozen=True)
class SeedsRow:
    """PSNR and SSIM of one changed run against the dense one; PSNR None: equal."""

    prompt: str
    change: str
    psnr: float | None
    ssim: float


class SeedsStudy:
    """Is the loss larger than what another seed, one step less or another precision does?"""

    name = "seeds"
    title = "What a decibel means"
    paper = "not in the paper"
    about = (
        "PSNR between the dense video and other dense ones (the next seed, one step less, "
        "bfloat16 instead of float32), beside that of the sparse ones."
    )

    def jobs(self, lab: Lab) -> list[Job]:
        """Return for each input the changed dense runs and two sparse ones."""
        size = lab.scale.small
        settings = [
            Setting(SEED, None, seed=1),
            Setting(STEP, None, fewer_steps=1),
            Setting(HALF, None, dtype="bfloat16"),
            *(found for found in main_settings(lab, 0.0) if found.name in (PAPER, OURS)),
        ]

        def make(entry: Mapping[str, Any]) -> dict[str, Any]:
            dense = lab.reference(entry, size).frames
            rows = []
            for setting in settings:
                if setting.dtype is not None and not computes_in_half():
                    continue
                alike = compare_videos(dense, lab.frames(setting, entry, size))
                equal = alike.psnr == float("inf")
                psnr = None if equal else alike.psnr
                rows.append(SeedsRow(entry["prompt"], setting.name, psnr, alike.ssim))
            return {"rows": [asdict(row) for row in rows]}

        runs = 1 + len(settings)
        jobs = per_input(lab, size, make, lab.scale.prompts, runs=runs, turn=TABLES)
        return jobs if computes_in_half() else [*jobs, Job(HALF, _skip_half, 0.0, turn=TABLES)]

    def show(self, results: Results) -> Section:
        """Return the table, a picture, and whether ours loses less than another step count."""
        rows = [
            SeedsRow(**row) for data in results.of_kind(self.name).values() for row in data["rows"]
        ]
        if not rows:
            return Section()
        psnr: dict[str, dict[str, float]] = {}
        ssim: dict[str, dict[str, float]] = {}
        for row in rows:
            value = float("inf") if row.psnr is None else row.psnr
            psnr.setdefault(row.change, {})[row.prompt] = value
            ssim.setdefault(row.change, {})[row.prompt] = row.ssim
        cells = []
        for name in psnr:
            shown = interval(list(psnr[name].values())), interval(list(ssim[name].values()))
            texts = (
                "" if found is None else say_interval(found, text)
                for found, text in zip(shown, ("{:.2f}", "{:.4f}"), strict=True)
            )
            cells.append([Cell(name), *(Cell(text) for text in texts)])
        table = Table("Against the dense video", ["change", "PSNR, dB", "SSIM"], cells)
        claims = []
        for other in (STEP, SEED):
            found = paired(psnr.get(OURS, {}), psnr.get(other, {}))
            if found is not None:
                text = f"Ours, without a dense step, changes a video less than {other} does"
                figure = say_difference(found, " dB")
                claims.append(Claim(text, verdict_of(found), figure, of_paper=False))
        return Section(claims, [table, _draw(psnr)])


def _skip_half() -> dict[str, str]:
    raise Skipped("bfloat16: this processor ends a bfloat16 product with an error")


@cache
def computes_in_half() -> bool:
    """Return whether bfloat16 products work here: some virtual machines promise instructions that
    they do not have, which would end this process, so another one tries."""
    command = [sys.executable, "-c", _PROBE]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _draw(psnr: Mapping[str, Mapping[str, float]]) -> Plot:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 3.2), layout="constrained")
    axes = figure.subplots()
    for row, (name, values) in enumerate(psnr.items()):
        finite = [value for value in values.values() if value < float("inf")]
        axes.scatter(finite, [row] * len(finite), s=16, label=name)
    axes.set_yticks(range(len(psnr)), list(psnr))
    axes.set(xlabel="PSNR against the dense video, dB")
    axes.grid(visible=True, alpha=0.3)
    return Plot("seeds", "What a decibel means", as_png(figure), "A point is a prompt.")
