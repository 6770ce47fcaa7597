"""Codes of drawn scenes, made as training goes and kept in files: pictures and whole clips."""

from __future__ import annotations

import hashlib
import inspect
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import load_file, save
from torch import Tensor

from svoo.storage import write_atomically
from tools.training import backgrounds, scenes
from tools.training.curriculum import CODE_FRAMES, SMALL
from tools.training.scenes import CLIP_FRAMES, Scene, draw_scene, render

PIXELS = 8  # of a code, across
STATISTICS_CLIPS = 32


@dataclass(frozen=True)
class Supply:
    """How a pool fills: files of `together` clips, `first` of them at once, then one more every
    `every` batches (6 % of the time for pictures, 16 % for clips)."""

    together: int
    first: int
    every: int


PICTURES = Supply(240, 4, 150)
CLIPS = Supply(16, 6, 60)


@dataclass(frozen=True)
class Clip:
    """What a code shows: a whole clip from its first frame on, or the picture at a frame."""

    scene: Scene
    first_frame: int = 0

    def times(self, code_frames: list[int], back: int = 0) -> Tensor:
        """Return the time of the frame that is `back` before the last one of each code frame.

        A code frame stands for four frames of the clip, the first for one.
        """
        last = 4.0 * torch.tensor(code_frames)
        return (self.first_frame + (last - back).clamp(min=0)) / (CLIP_FRAMES - 1)


def draw_picture(chance: random.Random) -> Clip:
    """Draw a picture of a scene at any time; of one in which something spins its first frame:
    captions of pictures say nothing of motion, so things that nobody said were turned would teach
    outlines that are the mean of all turns."""
    scene = draw_scene(chance)
    spins = any(thing.motion == "spin" for thing in scene.things)
    return Clip(scene, 0 if spins else chance.randint(0, CLIP_FRAMES - 1))


def is_hard(clip: Clip) -> bool:
    """Whether a clip shows what was learnt last: turning, or a star beside another thing."""
    things = clip.scene.things
    return any(
        thing.motion == "spin" or (thing.shape == "star" and len(things) > 1) for thing in things
    )


@dataclass(frozen=True)
class Statistics:
    """Mean and spread of an autoencoder's codes, `[1, 16, 1, 1, 1]` each."""

    mean: Tensor
    spread: Tensor


@torch.no_grad()
def measure_statistics(vae: AutoencoderKLWan, clips: int) -> Statistics:
    """Measure the codes of whole clips at 96 x 160."""
    drawn = [Clip(draw_scene(random.Random(f"statistics {number}"))) for number in range(clips)]
    codes = torch.cat([encode(vae, [clip], CODE_FRAMES, SMALL) for clip in drawn])
    over = (0, 2, 3, 4)
    return Statistics(codes.mean(over, keepdim=True), codes.std(over, keepdim=True))


def encode(
    vae: AutoencoderKLWan, clips: list[Clip], code_frames: int, grid: tuple[int, int]
) -> Tensor:
    """Draw clips or pictures and return their codes `[clips, 16, code_frames, rows, columns]`."""
    frames = 4 * code_frames - 3
    height, width = PIXELS * grid[0], PIXELS * grid[1]
    drawn = [render(c.scene, frames, height, width, first_frame=c.first_frame) for c in clips]
    codes: Tensor = vae.encode(torch.stack(drawn).transpose(1, 2)).latent_dist.mode()
    return codes


class Pool:
    """Codes of one kind that batches are drawn from; grows while training goes on.

    Files of an earlier run are read again. On a new machine there are none: new clips are drawn
    then, from where the numbering stood, so that every session sees scenes of its own.
    """

    def __init__(
        self,
        folder: Path,
        vae: AutoencoderKLWan,
        statistics: Statistics,
        grid: tuple[int, int],
        *,
        pictures: bool,
        begin: int = 0,
    ) -> None:
        """Use a folder of this autoencoder's codes of scenes as they are drawn now; number new
        files from `begin`."""
        self.vae, self.statistics, self.grid = vae, statistics, grid
        self.frames = 1 if pictures else CODE_FRAMES
        self.supply = PICTURES if pictures else CLIPS
        self.name = f"{'pictures' if pictures else 'clips'} {grid[0]}x{grid[1]}"
        self.folder = folder / _fingerprint(vae, statistics) / self.name.replace(" ", "-")
        self.codes: list[Tensor] = []
        self.clips: list[Clip] = []
        self._uses = 0
        kept = sorted(int(path.stem) for path in self.folder.glob("*.safetensors"))
        for number in kept:
            self._read(number)
        self.next = max([begin, *(number + 1 for number in kept)])

    def draw(
        self, count: int, chance: random.Random, favour: float = 0.0
    ) -> tuple[Tensor, list[Clip]]:
        """Return codes `[count, 16, frames, rows, columns]` and what they show, after growing if
        it is time to; a share `favour` of them is hard."""
        while len(self.codes) < self.supply.first or self._uses >= self.supply.every:
            self._grow()
            self._uses = 0
        self._uses += 1
        hard = [number for number, clip in enumerate(self.clips) if is_hard(clip)] or [0]
        picked = [
            chance.choice(hard) if chance.random() < favour else chance.randrange(len(self.clips))
            for _ in range(count)
        ]
        size = self.supply.together
        codes = torch.stack([self.codes[number // size][number % size] for number in picked])
        return codes.float(), [self.clips[number] for number in picked]

    def _grow(self) -> None:
        codes = (encode_file(self) - self.statistics.mean) / self.statistics.spread
        write_atomically(self._path(self.next), save({"codes": codes.half()}))
        self._read(self.next)
        self.next += 1

    def _read(self, number: int) -> None:
        self.codes.append(load_file(self._path(number))["codes"])
        self.clips += self.drawn(number)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"

    def drawn(self, number: int) -> list[Clip]:
        """Draw the scenes of a file."""
        first = number * self.supply.together
        chances = [
            random.Random(f"{self.name} {first + clip}") for clip in range(self.supply.together)
        ]
        return [
            Clip(draw_scene(chance)) if self.frames > 1 else draw_picture(chance)
            for chance in chances
        ]


@torch.no_grad()
def encode_file(pool: Pool, together: int = 8) -> Tensor:
    """Encode the scenes of a pool's next file, a few at a time."""
    clips = pool.drawn(pool.next)
    return torch.cat(
        [
            encode(pool.vae, clips[start : start + together], pool.frames, pool.grid)
            for start in range(0, len(clips), together)
        ]
    )


def _fingerprint(vae: AutoencoderKLWan, statistics: Statistics) -> str:
    digest = hashlib.sha256()
    for module in (scenes, backgrounds):
        digest.update(inspect.getsource(module).encode())
    for value in (*vae.state_dict().values(), statistics.mean, statistics.spread):
        digest.update(value.float().numpy().tobytes())
    return digest.hexdigest()[:12]
