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
)
from svoo.studies.comparisons import say_difference, say_interval, verdict_of
from svoo.studies.lab import Lab
from svoo.studies.results import Results
from svoo.studies.runs import Setting
from svoo.studies.settings import OURS, PAPER, main_settings
from svoo.studies.statistics import interval, paired

_OTHER = {"float32": "bfloat16", "bfloat16": "float32"}
_PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); (x @ x).sum().item()"
SEED, STEP = "another seed", "one step less"


@dataclass(frozen=True)
class SeedsRow:
    """PSNR and SSIM of one changed run against the dense one; PSNR None: equal. `settings` names
    all that decides it but the prompt: of a change only rows with the latest are shown."""

    prompt: str
    change: str
    settings: str
    psnr: float | None
    ssim: float


class SeedsStudy:
    """Is the loss larger than what another seed, one step less or another precision does?"""

    name = "seeds"
    title = "What a decibel means"
    paper = "nothing like it"
    about = (
        "PSNR between the dense video and other dense ones (the next seed, one step less, the "
        "other precision of bfloat16 and float32), beside that of the sparse ones."
    )

    def jobs(self, lab: Lab) -> list[Job]:
        """Return for each input the changed dense runs and two sparse ones."""
        size = lab.scale.small
        other = _OTHER.get(lab.pipelines.dtype(), "float32")
        settings = [Setting(SEED, None, seed=1), Setting(STEP, None, fewer_steps=1)]
        settings += [found for found in main_settings(lab, 0.0) if found.name in (PAPER, OURS)]
        if other == "float32" or computes_in_half():
            settings.append(Setting(other, None, dtype=other))
        jobs = []
        for entry in lab.inputs[: lab.scale.prompts]:
            for setting in settings:

                def make(
                    setting: Setting = setting, entry: Mapping[str, Any] = entry
                ) -> dict[str, Any]:
                    dense = lab.reference(entry, size).frames
                    alike = compare_videos(dense, lab.frames(setting, entry, size))
                    psnr = None if alike.psnr == float("inf") else alike.psnr
                    facts = entry["prompt"], setting.name, lab.run_key(setting, {}, size)
                    return asdict(SeedsRow(*facts, psnr, alike.ssim))

                run = lab.run_key(setting, entry, size)
                key = f"{setting.name} | {entry['prompt']} | {run}"
                jobs.append(Job(key, make, lab.scale.cost(size), entry["prompt"], TABLES))
        if other != "float32" and not computes_in_half():
            jobs.append(Job(other, _skip_half, 0.0, turn=TABLES))
        return jobs

    def show(self, results: Results) -> Section:
        """Return the table, a picture, and whether ours loses less than another step count."""
        every = [SeedsRow(**data) for data in results.of_kind(self.name).values()]
        latest = {row.change: row.settings for row in every}
        rows = [row for row in every if row.settings == latest[row.change]]
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
        prompts = max(len(values) for values in psnr.values())
        title = f"Against the dense video ({results.about['small']}, no warm-up)"
        table = Table(title, ["change", "PSNR, dB", "SSIM"], cells, f"{prompts} prompts.")
        claims = []
        for other, words in ((STEP, "leaving out one of the steps"), (SEED, "another seed")):
            found = paired(psnr.get(OURS, {}), psnr.get(other, {}))
            if found is not None:
                text = f"Ours, without a dense step, changes a video less than {words} does"
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
