"""Batches for the transformer: noisy codes, captions, and what the losses compare with."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from tools.training.codes import Pool
from tools.training.curriculum import CODE_FRAMES, Kind, Stage
from tools.training.guides import Targets, targets
from tools.training.text import without_motion

CAPTION_DROPOUT = 0.1
SHIFT = 3.0  # of logit-normal noise levels
TEXT_LENGTHS = (32,) * 10 + (128, 512)  # what pipelines pad captions to


@dataclass(frozen=True)
class Batch:
    """Clean codes `[B, 16, T, rows, columns]` with noise of a level each, and their captions."""

    clean: Tensor
    noise: Tensor
    level: Tensor  # [B]
    captions: list[str]  # some dropped
    said: Tensor  # [B], 1 where the caption was not
    text_length: int
    code_frames: list[int]
    targets: Targets
    from_image: bool  # the first code frame is given, clean


def draw_batch(stage: Stage, kind: Kind, pool: Pool, chance: random.Random) -> Batch:
    """Draw a batch from a pool, all by `chance`."""
    code_frames = pick_frames(kind.frames, chance)
    codes, clips = pool.draw(kind.clips, chance, stage.favour)
    clean = codes[:, :, code_frames]
    said = torch.tensor([float(chance.random() >= CAPTION_DROPOUT) for _ in clips])
    captions = [clip.scene.caption if kept else "" for clip, kept in zip(clips, said, strict=True)]
    if kind.frames == 1:
        captions = [without_motion(caption) for caption in captions]
    generator = torch.Generator().manual_seed(chance.getrandbits(62))
    return Batch(
        clean,
        torch.randn(clean.shape, generator=generator),
        noise_levels(kind.clips, stage.high, generator),
        captions,
        said,
        chance.choice(TEXT_LENGTHS),
        code_frames,
        targets(clips, code_frames, kind.grid),
        from_image=kind.frames > 1 and chance.random() < stage.image_share,
    )


def pick_frames(count: int, chance: random.Random) -> list[int]:
    """Choose code frames: always both ends, so that a clip's length is always the same."""
    if count == 1:
        return [0]
    if count < CODE_FRAMES and (CODE_FRAMES - 1) % (count - 1) == 0 and chance.random() < 0.3:
        return list(range(0, CODE_FRAMES, (CODE_FRAMES - 1) // (count - 1)))
    between = chance.sample(range(1, CODE_FRAMES - 1), count - 2)
    return [0, *sorted(between), CODE_FRAMES - 1]


def noise_levels(count: int, high: tuple[float, float], generator: torch.Generator) -> Tensor:
    """Draw noise levels: logit-normal with a shift, but a share `high[0]` of them evenly between
    `high[1]` and 1, where places and paths are decided."""
    share, least = high
    even = torch.sigmoid(torch.randn(count, generator=generator))
    levels = SHIFT * even / (1 + (SHIFT - 1) * even)
    lifted = 1 - (1 - least) * torch.rand(count, generator=generator)
    return torch.where(torch.rand(count, generator=generator) < share, lifted, levels)
