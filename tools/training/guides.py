"""Guides: linear layers on middle blocks that have to say what a clip shows; only in training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from diffusers import WanTransformer3DModel
from torch import Tensor, nn
from torch.nn import functional

from svoo.mini.vocabulary import BACKGROUNDS, COLOURS, DIRECTIONS, OTHER_MOTIONS, SHAPES
from tools.training.backgrounds import ASPECT
from tools.training.codes import Clip
from tools.training.curriculum import CODE_FRAMES
from tools.training.scenes import CORNERS, cover, grid, near_things, pose

FACTORS, PRODUCT = 2, 3  # the blocks that are listened to
OWNERS = ("first", "second", "neither")  # of words
THING_WEIGHT = 3.0  # how much more an error on or near a thing counts


@dataclass(frozen=True)
class Targets:
    """What the guides should say of a batch `[B]` of clips with code frames `[T]`.

    Where there are two things, a token speaks of the one in its half of the picture.
    """

    shape: Tensor  # [B, columns], an index
    motion: Tensor  # [B, columns, 6]: a direction's step and a flag for every other motion
    place: Tensor  # [B, T, columns, 3]: x and y in fifths of a height, and radius
    cover: Tensor  # [B, T, rows, columns, 4]
    near: Tensor  # [B, T, rows, columns], bool
    turn: Tensor  # [B, T, columns, 2]: cosine and sine of how far it is turned, of one corner
    colour: Tensor  # [B, columns], an index


def targets(clips: list[Clip], code_frames: list[int], cells: tuple[int, int]) -> Targets:
    """Work out what clips show."""
    rows, columns = cells
    right = (grid(rows, columns)[0].flatten() > ASPECT / 2).long()
    shape, motion, place, covered, near, turn, colour = [], [], [], [], [], [], []
    for clip in clips:
        things = clip.scene.things
        owner = right if len(things) == 2 else torch.zeros_like(right)
        times = clip.times(code_frames)
        shape.append(torch.tensor([SHAPES.index(thing.shape) for thing in things])[owner])
        colours = [list(COLOURS).index(thing.colour) for thing in things]
        colour.append(torch.tensor(colours)[owner])
        motion.append(torch.stack([_motion(thing.motion) for thing in things])[owner])
        poses = [pose(thing, times) for thing in things]
        places = [
            torch.stack(((x - ASPECT / 2) / 0.2, (y - 0.5) / 0.2, (radius - 0.22) / 0.1), dim=-1)
            for x, y, radius, _ in poses
        ]
        place.append(torch.stack(places, dim=1)[:, owner])
        angles = torch.stack([turned for _, _, _, turned in poses], dim=1)
        phase = angles * torch.tensor([CORNERS.get(thing.shape, 0) for thing in things])
        turn.append(torch.stack((phase.cos(), phase.sin()), dim=-1)[:, owner])
        covered.append(cover(clip.scene, times, rows, columns))
        begins = clip.times(code_frames, back=3)
        near.append(
            near_things(clip.scene, times, rows, columns)
            | near_things(clip.scene, begins, rows, columns)
        )
    return Targets(
        torch.stack(shape),
        torch.stack(motion),
        torch.stack(place),
        torch.stack(covered),
        torch.stack(near),
        torch.stack(turn),
        torch.stack(colour),
    )


def _motion(name: str) -> Tensor:
    return torch.tensor(
        [*DIRECTIONS.get(name, (0, 0)), *(float(name == other) for other in OTHER_MOTIONS)]
    )


class Guides(nn.Module):
    """Say shape, cover of the token, and the two factors of a path, time and motion, in one block;
    their product, the place and turn in the token's frame, in the next.

    Without them motion words are not learnt: a path is direction times time, a product with no
    gradient while both are missing.
    """

    def __init__(self, transformer: WanTransformer3DModel) -> None:
        """Listen to two blocks of a transformer."""
        super().__init__()
        width = transformer.proj_out.in_features
        self.shape, self.cover = nn.Linear(width, len(SHAPES)), nn.Linear(width, 4)
        self.colour, self.column = nn.Linear(width, len(COLOURS)), nn.Linear(width, 1)
        self.word = nn.Linear(transformer.config.text_dim, len(OWNERS))
        self.time, self.motion = nn.Linear(width, 1), nn.Linear(width, 2 + len(OTHER_MOTIONS))
        self.place = nn.Linear(width, 3)
        self.turn = nn.Linear(width, 2)
        self._heard: dict[int, Tensor] = {}
        for number in (FACTORS, PRODUCT):
            transformer.blocks[number].register_forward_hook(
                lambda _block, _inputs, state, number=number: self._heard.update({number: state})
            )

    def errors(
        self, wanted: Targets, code_frames: list[int], said: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the mean errors of the forward just done, and those of places clip by clip `[B]`.

        `said [B]` is 1 where the caption was not dropped: without it only cover and time count.
        """
        rows, columns = wanted.cover.shape[2:4]
        cells = (len(code_frames), rows, columns)
        factors = self._heard[FACTORS].unflatten(1, cells)
        product = self._heard[PRODUCT].unflatten(1, cells)
        count = said.sum().clamp(min=1)

        unlikely = _unlikely(self.shape(factors), wanted.shape)
        columns_told = self.column(factors).float().squeeze(-1)
        place = (self.place(product).float() - wanted.place.unsqueeze(2)).square()
        place = place.mean(dim=(1, 2, 3, 4))
        turn = (self.turn(product).float() - wanted.turn.unsqueeze(2)).square()
        errors = {
            "shape": (unlikely * said).sum() / count,
            "cover": functional.binary_cross_entropy_with_logits(
                self.cover(factors).float(), wanted.cover
            ),
            "place": (place * said).sum() / count,
            "turn": (turn.mean(dim=(1, 2, 3, 4)) * said).sum() / count,
            "colour": (_unlikely(self.colour(factors), wanted.colour) * said).sum() / count,
            "column": (columns_told - torch.linspace(-1.7, 1.7, columns)).square().mean(),
        }
        if len(code_frames) > 1:
            clock = 3 * (torch.tensor(code_frames) / (CODE_FRAMES - 1) - 0.5).view(1, -1, 1, 1)
            told = self.time(factors).float().squeeze(-1)
            motion = (self.motion(factors).float() - wanted.motion[:, None, None]).square()
            errors["time"] = (told - clock).square().mean()
            errors["motion"] = (motion.mean(dim=(1, 2, 3, 4)) * said).sum() / count
        return errors, place.detach()

    def word_error(self, words: Tensor, captions: list[str]) -> Tensor:
        """Return how unlikely it is, by states of words `[B, L, width]`, that each word belongs to
        what it does."""
        owners = [word_owners(caption) for caption in captions]
        told = self.word(words).float()
        picked = [told[number, : len(own)] for number, own in enumerate(owners)]
        known = torch.tensor([OWNERS.index(owner) for own in owners for owner in own])
        return functional.cross_entropy(torch.cat(picked), known) if len(known) else told.sum() * 0


def word_owners(caption: str) -> list[str]:
    """Say what each word of a caption is about: the first thing, the second, or neither."""
    things, wheres = caption, {w for each in BACKGROUNDS.values() for w in each}
    for background in BACKGROUNDS:
        for where in sorted(wheres, key=len, reverse=True):
            things = things.removesuffix(f" {where} {background}")
    first, joined, second = things.partition(" while ")
    counts = len(first.split()), 1 if joined else 0, len(second.split())
    rest = len(caption.split()) - sum(counts)
    return [
        *["first"] * counts[0],
        *["neither"] * counts[1],
        *["second"] * counts[2],
        *["neither"] * rest,
    ]


def _unlikely(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean over a clip's tokens of how unlikely the right answer of each column `[B,
    columns]` is by logits `[B, T, rows, columns, answers]`: `[B]`."""
    names = logits.float().log_softmax(dim=-1).mean(dim=(1, 2))
    return -names.gather(2, wanted.unsqueeze(2)).mean(dim=(1, 2))


def weigh(near: Tensor) -> Tensor:
    """Return how much the error of each code counts, 1 on average, `[B, 1, T, rows, columns]`."""
    weights = (1 + THING_WEIGHT * near).unsqueeze(1)
    return weights / weights.mean()
