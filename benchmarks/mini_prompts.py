"""Does the embedded model do what its prompts say? Colour, shape, motion and place, read from the
pixels.

    python benchmarks/mini_prompts.py --out out/benchmarks
    python benchmarks/mini_prompts.py --weights out/weights     # weights that are not shipped yet
    python benchmarks/mini_prompts.py --method svoo             # sparse: a quarter of the time
    python benchmarks/mini_prompts.py --out docs/benchmarks --page docs/mini.md

Held-out prompts with a straight motion, with another one (bounce, orbit, grow, spin), with two
things, and going on from a drawn first picture, with fixed seeds. Writes a JSON, and a strip of
twelve prompts with five frames each.

The reader is plain image analysis: shapes count if they are right in the first, the middle and
the last frame, places if colour and pattern are. It has to score 98 % on drawn clips first, and
no more than chance allows with the captions shuffled.
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
from harness import machine, save
from pages import as_table, check_section, describe_machine, fill_section
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from svoo.metrics.compare import psnr
from svoo.mini.from_image import load_from_image
from svoo.mini.pipeline import WEIGHTS, load
from svoo.mini.vocabulary import DIRECTIONS, MOTIONS, OTHER_MOTIONS
from svoo.plugin.apply import apply
from tools.training.questions import held_out_scenes, two_thing_scenes
from tools.training.reader import read_clip, read_halves, right_answers, right_halves
from tools.training.scenes import Scene, render
from tools.training.training import save_grid

QUESTIONS = ("colour", "motion", "background", "shape")
TITLES = {
    "straight": "straight motions",
    "other": "bounce, orbit, grow, spin",
    "two": "two things",
    "from image": "going on from a picture",
}
STRIP = {"straight": 5, "other": 4, "two": 3, "from image": 0}  # rows of the picture


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


def as_markdown(
    scores: dict[str, dict[str, Any]],
    counts: dict[str, int],
    moved: dict[str, str],
    returned: list[float],
    about: str,
) -> str:
    """Return what was found as a page has it. `counts`: prompts of a group; `moved`: how many of
    each motion that is not straight were right; `returned`: PSNR of the given first pictures."""
    rows: list[tuple[str, ...]] = [("", *QUESTIONS)]
    for name, found in scores.items():
        shares = (f"{found['generated'][question]:.0%}" for question in QUESTIONS)
        rows.append((f"{TITLES[name]} ({counts[name]})", *shares))
    words = [about, as_table(*rows)]
    words.append("Right by motion: " + ", ".join(f"{m} {n}" for m, n in moved.items()) + ".")
    if returned:
        words[-1] += (
            f" Given first pictures are returned at {sorted(returned)[len(returned) // 2]:.1f} dB "
            f"in the median, {min(returned):.1f} at least."
        )
    return "\n\n".join(words)


def main(
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("out/benchmarks"),
    straight: Annotated[int, typer.Option(min=4, help="Prompts with a straight motion.")] = 48,
    other: Annotated[int, typer.Option(min=4, help="Prompts with another motion.")] = 24,
    two: Annotated[int, typer.Option(min=4, help="Prompts with two things.")] = 24,
    image: Annotated[int, typer.Option(min=0, help="Prompts with a first picture.")] = 24,
    weights: Annotated[Path, typer.Option(help="Folder of the model's weights.")] = WEIGHTS,
    method: Annotated[str, typer.Option(help="A method of `svoo methods`.")] = "dense",
    height: int = 144,
    width: int = 256,
    frames: int = 49,
    steps: int = 20,
    page: Annotated[
        Path | None, typer.Option(help="A page whose section mini_prompts is filled.")
    ] = None,
) -> None:
    """Generate the prompts and read the clips."""
    if page is not None:
        check_section(page, "mini_prompts")  # before hours of work
    console = Console()
    sizes = {"height": height, "width": width, "num_frames": frames}
    call: dict[str, Any] = {
        **sizes,
        "num_inference_steps": steps,
        "max_sequence_length": 32,
        "output_type": "pt",
    }
    groups = {
        "straight": Group(held_out_scenes(DIRECTIONS, straight), read_clip, right_answers),
        "other": Group(held_out_scenes(OTHER_MOTIONS, other), read_clip, right_answers),
        "two": Group(two_thing_scenes(two), read_halves, right_halves),
    }
    if image:
        scenes = held_out_scenes(MOTIONS, image)
        groups["from image"] = Group(scenes, read_clip, right_answers)
    scores = {
        name: check_reader(name, group, frames, height, width) for name, group in groups.items()
    }
    pipe = load(weights)
    pipe.set_progress_bar_config(disable=True)
    goes_on = load_from_image(weights)
    goes_on.set_progress_bar_config(disable=True)
    for each in (pipe, goes_on):
        apply(each, method)
    rows: list[dict[str, Any]] = []
    strip = []
    for name, group in groups.items():
        read = []
        for number, scene in enumerate(track(group.scenes, name)):
            chance = torch.Generator().manual_seed(number)
            row: dict[str, Any] = {"group": name, "caption": scene.caption}
            if name == "from image":
                first = (render(scene, 1, height, width)[0] + 1) / 2
                picture = Image.fromarray((first.permute(1, 2, 0) * 255).byte().numpy())
                clip = goes_on(picture, scene.caption, generator=chance, **call).frames[0]
                row["first frame, dB"] = psnr(clip[:1].float().numpy(), first[None].numpy())
            else:
                clip = pipe(scene.caption, generator=chance, **call).frames[0]
            read.append(group.read(clip.float()))
            seen = read[-1] if isinstance(read[-1], tuple) else (read[-1],)
            rows.append(row | {"read": [asdict(thing) for thing in seen]})
            if number < STRIP[name]:
                strip.append(2 * clip.float() - 1)
        scores[name]["generated"] = group.score(read, group.scenes)
    for name, found in scores.items():
        table = Table("", *QUESTIONS, title=f"{len(groups[name].scenes)} held-out prompts: {name}")
        for kind, values in found.items():
            table.add_row(kind, *(f"{values[question]:.1%}" for question in QUESTIONS))
        console.print(table)
    returned = [row["first frame, dB"] for row in rows if "first frame, dB" in row]
    if returned:
        middle = sorted(returned)[len(returned) // 2]
        console.print(f"first frame returned: median {middle:.1f} dB, least {min(returned):.1f}")
    path = save(out, "mini_prompts", rows, scores=scores, sizes=sizes, method=method)
    save_grid(strip, out / "mini_prompts.jpg", columns=5)
    console.print(f"{path} written, pictures beside it")
    if page is not None:
        counts = {name: len(group.scenes) for name, group in groups.items()}
        about = (
            f"{width} x {height}, {frames} frames, {steps} steps, method {method}; "
            f"{describe_machine(machine())}."
        )
        moved = count_motions(rows, groups["other"])
        fill_section(page, "mini_prompts", as_markdown(scores, counts, moved, returned, about))


def count_motions(rows: list[dict[str, Any]], group: Group) -> dict[str, str]:
    """Return how many clips of each motion of a group were read as such."""
    read = [row["read"][0]["motion"] for row in rows if row["group"] == "other"]
    asked = [scene.things[0].motion for scene in group.scenes]
    pairs = list(zip(asked, read, strict=True))
    return {m: f"{pairs.count((m, m))} of {asked.count(m)}" for m in dict.fromkeys(asked)}


if __name__ == "__main__":
    typer.run(main)
