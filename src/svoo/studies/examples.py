"""The paper's Fig. 6: the videos themselves, dense and sparse side by side."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from svoo.metrics.video import read_video, write_video
from svoo.studies.base import FIRST, Job, Plot, Section, Videos, as_png
from svoo.studies.comparisons import DENSE
from svoo.studies.lab import Lab
from svoo.studies.results import Results
from svoo.studies.runs import Setting
from svoo.studies.settings import main_settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHOWN = 5  # frames of a strip


class ExamplesStudy:
    """Videos and strips of frames."""

    name = "examples"
    title = "Examples"
    paper = "Fig. 6"
    about = "The same prompt and noise, dense and by each method."

    def jobs(self, lab: Lab) -> list[Job]:
        """Return one video per prompt and method."""
        warm_up = lab.model.warm_up if lab.model else 0.2
        size = lab.scale.small
        jobs = []
        for entry in lab.inputs[: lab.scale.examples]:
            for setting in (DENSE, *main_settings(lab, warm_up)):

                def make(
                    setting: Setting = setting, entry: Mapping[str, Any] = entry
                ) -> dict[str, Any]:
                    video = encode(lab.frames(setting, entry, size))
                    facts = {"prompt": entry["prompt"], "setting": setting.name}
                    return {**facts, "mp4": base64.b64encode(video).decode()}

                run = lab.run_key(setting, entry, size)
                key = f"{setting.name} | {entry['prompt']} | {run}"
                cost = lab.scale.cost(size)
                jobs.append(Job(key, make, cost, entry["prompt"], FIRST))
        return jobs

    def show(self, results: Results) -> Section:
        """Return the videos of each prompt, and a strip of their frames."""
        videos: dict[str, dict[str, bytes]] = {}
        for row in results.of_kind(self.name).values():
            shown = videos.setdefault(row["prompt"], {})
            shown[row["setting"]] = base64.b64decode(row["mp4"])
        parts: list[Videos | Plot] = []
        for number, (prompt, shown) in enumerate(videos.items()):
            parts += [Videos(prompt, shown), _draw(prompt, shown, number)]
        return Section((), parts)


def encode(frames: NDArray[np.floating[Any]]) -> bytes:
    """Return frames as an mp4."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        write_video(frames, path)
        return path.read_bytes()


def decode(video: bytes) -> NDArray[np.uint8]:
    """Return the frames of an mp4."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        path.write_bytes(video)
        frames: NDArray[np.uint8] = read_video(path)
        return frames


def _draw(prompt: str, videos: Mapping[str, bytes], number: int) -> Plot:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.15 * len(videos)), layout="constrained")
    lines = figure.subplots(len(videos), 1, squeeze=False)[:, 0]
    for axes, (name, video) in zip(lines, videos.items(), strict=True):
        frames = decode(video)
        shown = np.linspace(0, len(frames) - 1, _SHOWN).round().astype(int)
        axes.imshow(np.concatenate(list(frames[shown]), axis=1))
        axes.set(xticks=[], yticks=[])
        if axes is lines[0]:
            width = frames.shape[2]
            places = [(number + 0.5) * width for number in range(_SHOWN)]
            axes.set_xticks(places, [f"frame {frame + 1}" for frame in shown], fontsize=7)
            axes.tick_params(axis="x", top=True, labeltop=True, labelbottom=False, length=0)
            axes.tick_params(axis="x", bottom=False)
        axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=7)
    return Plot(f"examples-{number}", f"Strips: {prompt}", as_png(figure))
