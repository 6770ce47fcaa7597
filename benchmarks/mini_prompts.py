"""Does the embedded model do what its prompts say? Colour, motion and place read from the pixels.

    python benchmarks/mini_prompts.py --out out/benchmarks

48 held-out prompts with a straight motion and 24 with another one (bounce, orbit, grow, spin), one
thing each, with fixed seeds. The reader is plain image analysis; it has to score 98 % on drawn
clips first (shapes aside), and no more than chance allows with the captions shuffled.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
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
from svoo.mini.vocabulary import BACKGROUNDS, COLOURS, DIRECTIONS, OTHER_MOTIONS, SHAPES
from tools.training.scenes import CLIP_FRAMES, Scene, ask_for, is_held_out, render

QUESTIONS = ("colour", "motion", "background", "shape")
CORNERS = (3, 4, 5)  # of a triangle, a square and a star
STILL = 0.05  # a path that strays less from its middle than this, in heights, goes nowhere


def held_out_scenes(motions: Iterable[str], count: int) -> list[Scene]:
    """Return scenes of combinations that training never saw alone in a clip, every motion equally
    often and every other answer about so."""
    motions = list(motions)
    combinations = [
        (colour, shape, motion, background)
        for colour in COLOURS
        for shape in SHAPES
        for motion in motions
        for background in BACKGROUNDS
        if is_held_out(colour, shape, motion, background)
        and not (motion == "spin" and shape in ("circle", "ring"))  # nobody could see it turn
    ]
    chance = random.Random(0)
    chance.shuffle(combinations)
    seen: Counter[str] = Counter()
    picked: list[tuple[str, str, str, str]] = []
    for place in range(count):
        motion = motions[place % len(motions)]
        left = [entry for entry in combinations if entry[2] == motion and entry not in picked]
        picked.append(min(left, key=lambda entry: sum(seen[answer] for answer in entry)))
        seen.update(picked[-1])
    return [ask_for(*answers, random.Random(place)) for place, answers in enumerate(picked)]


def answers_of(scene: Scene) -> dict[str, str]:
    """Return what a scene shows."""
    thing = scene.things[0]
    return {
        "colour": thing.colour,
        "motion": thing.motion,
        "background": scene.background,
        "shape": thing.shape,
    }


def thing_mask(clip: Tensor) -> Tensor:
    """Return where the thing is in a clip `[frames, 3, H, W]` in [0, 1]: saturated, or
    brightly white."""
    largest, smallest = clip.amax(dim=1), clip.amin(dim=1)
    saturated = (largest - smallest > 0.42) & (largest > 0.35)
    white = smallest > 0.72
    return saturated | white


def read_clip(clip: Tensor) -> dict[str, str]:
    """Answer the questions from the pixels of a clip `[frames, 3, H, W]` in [0, 1]."""
    mask = thing_mask(clip)
    return {
        "colour": _read_colour(clip, mask),
        "motion": _read_motion(mask),
        "background": _read_background(clip, mask),
        "shape": _read_shape(mask),
    }


def _read_colour(clip: Tensor, mask: Tensor) -> str:
    pixels = clip.permute(0, 2, 3, 1)[mask]
    if not len(pixels):
        return "nothing"
    votes: Counter[str] = Counter()
    names, wanted = list(COLOURS), torch.tensor(list(COLOURS.values()))
    # Shading scales a colour: compare directions, and white by its lack of saturation.
    unit = torch.nn.functional.normalize(pixels - 0.6 * pixels.amin(dim=1, keepdim=True), dim=1)
    white = pixels.amax(dim=1) - pixels.amin(dim=1) < 0.25
    nearest = (unit @ torch.nn.functional.normalize(wanted[:-1], dim=1).T).argmax(dim=1)
    for index, is_white in zip(nearest.tolist(), white.tolist(), strict=True):
        votes["white" if is_white else names[index]] += 1
    return votes.most_common(1)[0][0]


def _read_motion(mask: Tensor) -> str:
    """Name the motion whose curve comes nearest to the thing's path; one that goes nowhere grows,
    turns, or is still."""
    frames = mask.shape[0]
    count = mask.sum(dim=(1, 2))
    seen = count > 0.3 * count.median().clamp(min=1)
    if seen.sum() < 8:
        return "nothing"
    times = torch.arange(frames)[seen] / (CLIP_FRAMES - 1)
    path = torch.stack([_centre(frame) for frame in mask[seen]])
    around = path - path.mean(dim=0)
    if around.square().sum(dim=1).mean().sqrt() < STILL:
        return _read_standing(mask[seen], count[seen])
    angle = 2 * math.pi * times
    ones = torch.ones_like(times)
    curves = {  # as in `tools.training.scenes.pose`
        "straight": torch.stack((ones, times), dim=1),
        "orbit": torch.stack((ones, angle.cos(), angle.sin()), dim=1),
        "bounce": torch.stack((ones, (2.5 * angle).cos(), (2.5 * angle).sin()), dim=1),
    }
    misses = {
        name: float((curve @ torch.linalg.lstsq(curve, path).solution - path).square().sum())
        for name, curve in curves.items()
    }
    best = min(misses, key=lambda name: misses[name])
    if best != "straight":
        return best
    speed = torch.linalg.lstsq(curves["straight"], path).solution[1]
    angles = {name: math.atan2(dy, dx) for name, (dx, dy) in DIRECTIONS.items()}
    heading = math.atan2(float(speed[1]), float(speed[0]))
    return min(angles, key=lambda name: abs(math.remainder(angles[name] - heading, 2 * math.pi)))


def _centre(frame: Tensor) -> Tensor:
    """Return the middle (x, y) of a mask `[H, W]`, in heights."""
    rows, columns = frame.nonzero().float().mean(dim=0) + 0.5
    return torch.stack((columns, rows)) / frame.shape[0]


def _read_standing(mask: Tensor, count: Tensor) -> str:
    """Tell growing from turning from neither, for a thing that stays where it is."""
    fifth = max(1, len(count) // 5)
    if count[-fifth:].float().mean() > 2 * count[:fifth].float().mean():
        return "grow"
    # k corners make a k-fold wave around the middle, whose phase turns k times as fast.
    waves = torch.stack([_corner_waves(frame) for frame in mask])
    corners = int(waves.abs().mean(dim=0).argmax())
    steps = (waves[1:, corners] * waves[:-1, corners].conj()).angle()
    turns = float(steps.sum()) / (2 * math.pi) / CORNERS[corners]
    return "spin" if abs(turns) > 0.5 else "still"


def _corner_waves(frame: Tensor) -> Tensor:
    """Return how strongly, and at which angle, a mask `[H, W]` has 3, 4 and 5 corners."""
    places = frame.nonzero().float()
    rows, columns = (places - places.mean(dim=0)).T
    distance, angle = torch.hypot(rows, columns), torch.atan2(rows, columns)
    far = (distance / distance.mean().clamp(min=1e-6)) ** 3
    return torch.stack([torch.polar(far, k * angle).sum() for k in CORNERS])


def _background_features(clip: Tensor, mask: Tensor) -> Tensor:
    """Return mean colour and mean differences along x and y of what is not the thing or its
    shadow."""
    free = torch.nn.functional.max_pool2d(mask.float().unsqueeze(1), 13, 1, 6).squeeze(1) == 0
    free[:, 0, 0] = True
    pixels = clip.permute(0, 2, 3, 1)
    colour = pixels[free].mean(dim=0)
    grey = pixels.mean(dim=-1)
    across = (grey[:, :, 1:] - grey[:, :, :-1]).abs()[free[:, :, 1:]].mean()
    down = (grey[:, 1:] - grey[:, :-1]).abs()[free[:, 1:]].mean()
    return torch.cat((colour, 4 * torch.stack((across, down))))


def _read_background(clip: Tensor, mask: Tensor) -> str:
    features = _background_features(clip, mask)
    prototypes = _prototypes(clip.shape[2], clip.shape[3])
    return min(prototypes, key=lambda name: float((features - prototypes[name]).norm()))


@cache
def _prototypes(height: int, width: int) -> dict[str, Tensor]:
    """Return the mean features of each background at a size, from drawn clips."""
    found = {}
    for background in BACKGROUNDS:
        features = []
        for seed in range(6):
            scene = ask_for("red", "circle", "grow", background, random.Random(f"p{seed}"))
            clip = (render(scene, 2, height, width) + 1) / 2
            features.append(_background_features(clip, thing_mask(clip)))
        found[background] = torch.stack(features).mean(dim=0)
    return found


def _read_shape(mask: Tensor) -> str:
    """Compare the mean mask, cut to its box, with drawn ones by overlap."""
    box = _box(mask)
    if box is None:
        return "nothing"
    best, best_overlap = "nothing", -1.0
    for shape in SHAPES:
        scene = ask_for("red", shape, "spin", "a starry sky", random.Random(0))
        still = replace(scene.things[0], motion="grow")
        drawn = render(
            Scene(scene.background, scene.background_phase, (still,), ""),
            1,
            144,
            256,
            first_frame=48,
        )
        wanted = _box(thing_mask((drawn + 1) / 2))
        assert wanted is not None
        overlap = float(torch.minimum(box, wanted).sum() / torch.maximum(box, wanted).sum())
        if overlap > best_overlap:
            best, best_overlap = shape, overlap
    return best


def _box(mask: Tensor) -> Tensor | None:
    """Return the mean over frames of the mask cut to the thing's box and scaled to 24 x 24."""
    boxes = []
    for frame in mask:
        rows, columns = frame.any(dim=1).nonzero().flatten(), frame.any(dim=0).nonzero().flatten()
        if len(rows) > 4 and len(columns) > 4:
            cut = frame[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].float()
            scaled = torch.nn.functional.interpolate(cut[None, None], (24, 24), mode="area")
            boxes.append(scaled[0, 0])
    return torch.stack(boxes).mean(dim=0) if boxes else None


def score(clips: list[dict[str, str]], scenes: list[Scene]) -> dict[str, float]:
    """Return the fraction of right answers to each question."""
    truth = [answers_of(scene) for scene in scenes]
    return {
        question: sum(c[question] == t[question] for c, t in zip(clips, truth, strict=True))
        / len(scenes)
        for question in QUESTIONS
    }


def main(
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("out/benchmarks"),
    straight: Annotated[int, typer.Option(min=4, help="Prompts with a straight motion.")] = 48,
    other: Annotated[int, typer.Option(min=4, help="Prompts with another motion.")] = 24,
    height: int = 80,
    width: int = 144,
    frames: int = 49,
    steps: int = 20,
) -> None:
    """Generate the prompts at about half size and read the clips."""
    console = Console()
    groups = {
        "straight": held_out_scenes(DIRECTIONS, straight),
        "other": held_out_scenes(OTHER_MOTIONS, other),
    }
    rows: list[dict[str, Any]] = []
    scores = {}
    for name, scenes in groups.items():
        drawn = [read_clip((render(scene, frames, height, width) + 1) / 2) for scene in scenes]
        scores[name] = {
            "drawn": score(drawn, scenes),
            "drawn, captions shuffled": score(drawn, random.Random(1).sample(scenes, len(scenes))),
        }
        required = {question: scores[name]["drawn"][question] for question in QUESTIONS[:3]}
        if min(required.values()) < 0.98:
            raise SystemExit(f"the reader is not good enough on drawn clips: {required}")
        shuffled = scores[name]["drawn, captions shuffled"]
        if max(shuffled.values()) > 0.5:  # by chance a quarter at most; four standard deviations
            raise SystemExit(f"the reader knows what captions do not say: {shuffled}")
    pipe = load()
    pipe.set_progress_bar_config(disable=True)
    for name, scenes in groups.items():
        read = []
        for place, scene in enumerate(track(scenes, f"{name} motions")):
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
            read.append(read_clip(clip.float()))
            rows.append({"caption": scene.caption, "truth": answers_of(scene), "read": read[-1]})
        scores[name]["generated"] = score(read, scenes)
    for name, found in scores.items():
        table = Table(
            "", *QUESTIONS, title=f"{len(groups[name])} held-out prompts, {name} motions"
        )
        for kind, values in found.items():
            table.add_row(kind, *(f"{values[question]:.1%}" for question in QUESTIONS))
        console.print(table)
    wrong = Counter(
        (row["truth"]["motion"], row["read"]["motion"])
        for row in rows
        if row["truth"]["motion"] != row["read"]["motion"]
    )
    for (asked, got), times in wrong.most_common():
        console.print(f"asked for {asked}, read {got}: {times}")
    path = save(
        out, "mini_prompts", rows, scores=scores, height=height, width=width, frames=frames
    )
    console.print(f"{path} written")


if __name__ == "__main__":
    typer.run(main)
