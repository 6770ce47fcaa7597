"""Does the embedded model do what its prompts say? Colour, shape, motion and place, read from the
pixels.

    python benchmarks/mini_prompts.py --out out/benchmarks

Held-out prompts with a straight motion, with another one (bounce, orbit, grow, spin), and with two
things, with fixed seeds. The reader is plain image analysis: shapes count if they are right in the
first, the middle and the last frame, places if colour and pattern are. It has to score 98 % on
drawn clips first, and no more than chance allows with the captions shuffled.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from harness import save
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from svoo.mini import load
from svoo.mini.vocabulary import DIRECTIONS, OTHER_MOTIONS
from tools.training.questions import held_out_scenes, two_thing_scenes
from tools.training.reader import read_clip, read_halves, right_answers, right_halves
from tools.training.scenes import Scene, render

QUESTIONS = ("colour", "motion", "background", "shape")


@dataclass(frozen=True)
class Group:
    """Scenes that are asked about alike."""

    scenes: list[Scene]
    read: Callable[[Tensor], Any]
    right: Callable[[Any, Scene], Counter[str]]

    def score(self, readings: list[Any], scenes: list[Scene]) -> dict[str, float]:
        """Return the part of right answers to each question."""
        right: Counter[str] = Counter()
        for reading, scene in zip(readings, scenes, strict=True):
            right += self.right(reading, scene)
        return {question: right[question] / len(scenes) for question in QUESTIONS}


def check_reader(name: str, group: Group, frames: int, height: int, width: int) -> dict[str, Any]:
    """Read drawn clips and return the scores, right and with captions shuffled; stop if the reader
    is not to be trusted."""
    drawn = [group.read((render(scene, frames, height, width) + 1) / 2) for scene in group.scenes]
    scores = {
        "drawn": group.score(drawn, group.scenes),
        "drawn, captions shuffled": group.score(
            drawn, random.Random(1).sample(group.scenes, len(group.scenes))
        ),
    }
    if min(scores["drawn"].values()) < 0.98:
        raise SystemExit(f"the reader is not good enough on drawn clips: {name}, {scores}")
    if max(scores["drawn, captions shuffled"].values()) > 0.5:  # by chance a quarter at most
        raise SystemExit(f"the reader knows what captions do not say: {name}, {scores}")
    return scores


def main(
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("out/benchmarks"),
    straight: Annotated[int, typer.Option(min=4, help="Prompts with a straight motion.")] = 48,
    other: Annotated[int, typer.Option(min=4, help="Prompts with another motion.")] = 24,
    two: Annotated[int, typer.Option(min=4, help="Prompts with two things.")] = 24,
    height: int = 144,
    width: int = 256,
    frames: int = 49,
    steps: int = 20,
) -> None:
    """Generate the prompts and read the clips."""
    console = Console()
    groups = {
        "straight": Group(held_out_scenes(DIRECTIONS, straight), read_clip, right_answers),
        "other": Group(held_out_scenes(OTHER_MOTIONS, other), read_clip, right_answers),
        "two": Group(two_thing_scenes(two), read_halves, right_halves),
    }
    scores = {
        name: check_reader(name, group, frames, height, width) for name, group in groups.items()
    }
    rows: list[dict[str, Any]] = []
    pipe = load()
    pipe.set_progress_bar_config(disable=True)
    for name, group in groups.items():
        read = []
        for place, scene in enumerate(track(group.scenes, name)):
            clip = pipe(
                scene.caption,
                height=height,
                width=width,
                num_frames=frames,
                num_inference_steps=steps,
                max_sequence_length=32,
                generator=torch.Generator().manual_seed(place),
                output_type="pt",
            ).frames[0]
            read.append(group.read(clip.float()))
            seen = read[-1] if isinstance(read[-1], tuple) else (read[-1],)
            rows.append({"caption": scene.caption, "read": [asdict(thing) for thing in seen]})
        scores[name]["generated"] = group.score(read, group.scenes)
    for name, found in scores.items():
        table = Table("", *QUESTIONS, title=f"{len(groups[name].scenes)} held-out prompts: {name}")
        for kind, values in found.items():
            table.add_row(kind, *(f"{values[question]:.1%}" for question in QUESTIONS))
        console.print(table)
    path = save(
        out, "mini_prompts", rows, scores=scores, height=height, width=width, frames=frames
    )
    console.print(f"{path} written")


if __name__ == "__main__":
    typer.run(main)
