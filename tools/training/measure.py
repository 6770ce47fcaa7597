"""How far training has come: held-out prompts read from the pixels, and what words add."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from svoo.mini.vocabulary import DIRECTIONS, MOTIONS
from tools.training.codes import Clip, Statistics, encode
from tools.training.curriculum import CODE_FRAMES, SMALL, Kind
from tools.training.guides import Guides, targets
from tools.training.questions import held_out_scenes, two_thing_scenes
from tools.training.reader import read_clip, read_halves, right_answers, right_halves
from tools.training.scenes import Scene
from tools.training.start import true_times
from tools.training.text import embed, opposite, without_motion
from tools.training.training import save_grid

STEPS, GUIDANCE, SHIFT = 12, 3.0, 3.0
TEXT_LENGTH = 32
PROBES, PROBE_LEVEL = 16, 0.99


def even_frames(count: int) -> list[int]:
    """Return `count` code frames from the first to the last, evenly."""
    return torch.linspace(0, CODE_FRAMES - 1, count).round().long().tolist() if count > 1 else [0]


@torch.no_grad()
def sample(
    parts: nn.ModuleDict,
    tokenizer: PreTrainedTokenizerFast,
    captions: list[str],
    code_frames: list[int],
    grid: tuple[int, int],
    generator: torch.Generator,
    first: Tensor | None = None,
) -> Tensor:
    """Generate codes `[captions, 16, T, rows, columns]` by Euler steps with guidance; `first
    [captions, 16, 1, rows, columns]` is a clean first code frame to go on from."""
    transformer, count = parts["transformer"], len(captions)
    words = torch.cat(
        [
            embed(parts["text_encoder"], tokenizer, said, TEXT_LENGTH)
            for said in (captions, [""] * count)
        ]
    )
    codes = torch.randn(count, 16, len(code_frames), *grid, generator=generator)
    levels = torch.linspace(1, 0, STEPS + 1)
    levels = SHIFT * levels / (1 + (SHIFT - 1) * levels)
    for now, then in pairwise(levels):
        timestep = (1000 * now).expand(2 * count)
        if first is not None:
            codes[:, :, :1] = first
            timestep = clean_first(timestep, len(code_frames), grid)
        with true_times(transformer, code_frames):
            both = transformer(
                torch.cat((codes, codes)),
                timestep=timestep,
                encoder_hidden_states=words,
                return_dict=False,
            )[0]
        asked, free = both.chunk(2)
        codes = codes + (then - now) * (free + GUIDANCE * (asked - free)).float()
    if first is not None:
        codes[:, :, :1] = first
    return codes


def clean_first(timestep: Tensor, code_frames: int, grid: tuple[int, int]) -> Tensor:
    """Return timesteps `[B, tokens]` that are 0 in the first code frame, as Wan 2.2 marks a given
    picture (`expand_timesteps`)."""
    tokens = timestep.unsqueeze(1).repeat(1, code_frames * grid[0] * grid[1])
    tokens[:, : grid[0] * grid[1]] = 0
    return tokens


@torch.no_grad()
def measure(
    parts: nn.ModuleDict,
    tokenizer: PreTrainedTokenizerFast,
    vae: AutoencoderKLWan,
    statistics: Statistics,
    kind: Kind,
    strip: Path | None = None,
    *,
    about: Literal["one", "two", "from image"] = "one",
) -> dict[str, float]:
    """Generate `kind.clips` held-out prompts with one thing or with two, or go on from their drawn
    first pictures, and return the parts of right answers; from fewer than all code frames only
    straight ways of one thing are asked for."""
    code_frames = even_frames(kind.frames)
    scenes = held_out_scenes(MOTIONS if kind.frames == CODE_FRAMES else DIRECTIONS, kind.clips)
    if about == "two":
        scenes = two_thing_scenes(kind.clips)
    together = max(1, 12 // kind.frames)
    right: Counter[str] = Counter()
    shown = []
    for start in range(0, len(scenes), together):
        asked = scenes[start : start + together]
        captions = [scene.caption for scene in asked]
        if kind.frames == 1:
            captions = [without_motion(caption) for caption in captions]
        first = None
        if about == "from image":
            first = encode(vae, [Clip(scene) for scene in asked], 1, kind.grid)
            first = (first - statistics.mean) / statistics.spread
        generator = torch.Generator().manual_seed(start)
        codes = sample(parts, tokenizer, captions, code_frames, kind.grid, generator, first)
        for clip, scene in zip(decode(vae, statistics, codes), asked, strict=True):
            seen = (clip + 1) / 2
            if about == "two":
                right += right_halves(read_halves(seen), scene)
            else:
                right += right_answers(read_clip(seen), scene)
            shown.append(clip)
    if strip:
        save_strip(shown, strip)
    questions = ("colour", "background", "shape", *(["motion"] if kind.frames > 1 else []))
    return {question: right[question] / len(scenes) for question in questions}


def decode(vae: AutoencoderKLWan, statistics: Statistics, codes: Tensor) -> Tensor:
    """Return clips `[B, frames, 3, rows, columns]` in [-1, 1] of codes; if code frames were left
    out, one picture of each that is there."""
    count, frames = len(codes), codes.shape[2]
    codes = codes * statistics.spread + statistics.mean
    if frames < CODE_FRAMES:
        # Apart from each other: the decoder takes neighbours for neighbours in time.
        codes = codes.transpose(1, 2).flatten(0, 1).unsqueeze(2)
    pictures: Tensor = vae.decode(codes).sample.clamp(-1, 1).transpose(1, 2)
    return pictures.reshape(count, -1, *pictures.shape[2:])


def save_strip(clips: list[Tensor], path: Path) -> None:
    """Save clips as a row of five frames each, or single pictures six in a row."""
    if len(clips[0]) > 1:
        save_grid(clips[:12], path, columns=min(5, len(clips[0])))
    else:
        starts = range(0, max(1, len(clips) - 5), 6)
        save_grid([torch.cat(clips[at : at + 6]) for at in starts], path)


class Probe:
    """Held-out clips whose loss and place are looked at in nearly pure noise."""

    def __init__(self, vae: AutoencoderKLWan, statistics: Statistics) -> None:
        """Encode the clips: the first and the last code frame of each."""
        self.scenes: list[Scene] = held_out_scenes(DIRECTIONS, PROBES)
        self.clips = [Clip(scene) for scene in self.scenes]
        with torch.no_grad():
            codes = torch.cat([encode(vae, [clip], CODE_FRAMES, SMALL) for clip in self.clips])
        codes = (codes - statistics.mean) / statistics.spread
        self.frames = [0, CODE_FRAMES - 1]
        self.codes = codes[:, :, self.frames]
        self.noise = torch.randn(self.codes.shape, generator=torch.Generator().manual_seed(0))
        self.targets = targets(self.clips, self.frames, SMALL)

    @torch.no_grad()
    def look(self, parts: nn.ModuleDict, tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
        """Return the place guide's error and what the opposite direction adds to the loss, both of
        the first and last code frame at noise .99."""
        guides = parts["guides"]
        assert isinstance(guides, Guides)
        noisy = (1 - PROBE_LEVEL) * self.codes + PROBE_LEVEL * self.noise
        captions = [scene.caption for scene in self.scenes]
        losses = []
        place = float("nan")
        for said in ([opposite(caption) for caption in captions], captions):
            words = embed(parts["text_encoder"], tokenizer, said, TEXT_LENGTH)
            with true_times(parts["transformer"], self.frames):
                velocity = parts["transformer"](
                    noisy,
                    timestep=torch.full((len(said),), 1000 * PROBE_LEVEL),
                    encoder_hidden_states=words,
                    return_dict=False,
                )[0]
            near = self.targets.near.unsqueeze(1).expand_as(self.codes)
            error = (velocity.float() - (self.noise - self.codes)).square()
            losses.append(float(error[near].mean()))
            _, places = guides.errors(self.targets, self.frames, torch.ones(len(said)))
            place = float(places.mean())
        return {"place at .99": place, "wrong word adds": losses[0] - losses[1]}
