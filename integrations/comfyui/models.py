"""What is special about each video model of ComfyUI: where its video tokens lie, and how much the
output of each head counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import svoo
from svoo import Dense, VideoLayout
from svoo.plugin.projections import Projection, weigh_projection

_LATENT_CHANNELS = 16  # of noise; models that begin with a picture take it as further channels

Grid = tuple[int, int, int]
Project = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class KnownModel:
    """A class of models: how its pipelines are called in svoo's catalogue, whether text follows
    the video in its self-attention, the numbers of its first layers by type of block, and the
    output projection of every layer."""

    family: str
    text: bool
    first_layers: Callable[[Any], dict[str, int]]
    projections: Callable[[Any], list[Projection]]


def _wan_projections(model: Any) -> list[Projection]:
    return [
        Projection(block.self_attn.o, model.num_heads, model.dim, model.dim)
        for block in model.blocks
    ]


def _hunyuan_projections(model: Any) -> list[Projection]:
    heads, width = model.num_heads, model.hidden_size
    double = [
        Projection(block.img_attn.proj, heads, width, width) for block in model.double_blocks
    ]
    single = [
        Projection(block.linear2, heads, width, width + block.mlp_hidden_dim)
        for block in model.single_blocks
    ]
    return double + single


MODELS = {
    "WanModel": KnownModel(
        family="Wan",
        text=False,
        first_layers=lambda _model: {"double": 0},
        projections=_wan_projections,
    ),
    "HunyuanVideo": KnownModel(
        family="HunyuanVideo",
        text=True,
        first_layers=lambda model: {"double": 0, "single": len(model.double_blocks)},
        projections=_hunyuan_projections,
    ),
}


def find_model(model: object) -> KnownModel | None:
    """Return what is known of a model's class, or of the nearest class that it derives from."""
    for base in type(model).__mro__:
        if base.__name__ in MODELS:
            return MODELS[base.__name__]
    return None


def count_layers(model: object, known: KnownModel) -> int:
    """Return the number of self-attention layers."""
    return len(known.projections(model))


def name_model(model: object, known: KnownModel) -> str | None:
    """Return the name in svoo's catalogue of the nearest model with as many layers and heads, for
    what a method's authors set for it; None if there is none.

    An expert of Wan 2.2 that makes video from text looks as Wan 2.1 14B does, and counts as it;
    of those that begin with a picture, Wan 2.2's have no part for what CLIP says of it.
    """
    sizes = len(known.projections(model)), known.projections(model)[0].heads
    fitting = [
        row
        for row in svoo.models()
        if row.pipeline.startswith(known.family) and (row.layers, row.heads) == sizes
    ]
    channels = getattr(getattr(model, "patch_embedding", None), "in_channels", 0)
    from_picture = channels > _LATENT_CHANNELS
    experts = 2 if from_picture and getattr(model, "img_emb", None) is None else 1
    fitting.sort(
        key=lambda row: (("ImageToVideo" in row.pipeline) != from_picture, row.stages != experts)
    )
    return fitting[0].name if fitting else None


def find_grid(latent: Tensor, patch_size: Any) -> Grid | None:
    """Return frames, height and width in tokens of a latent `[B, C, T, H, W]`, padded to whole
    patches as the models do; None for pictures."""
    if latent.ndim != 5 or len(patch_size) != 3:
        return None
    sides = [math.ceil(side / patch) for side, patch in zip(latent.shape[2:], patch_size)]  # noqa: B905
    return sides[0], sides[1], sides[2]


def find_layout(
    known: KnownModel, grid: Grid, tokens: int, batch: int, mask: Tensor | None
) -> VideoLayout | Dense:
    """Return how a sequence of so many tokens lies, or dense with what is not understood.

    Wan appends or prepends whole frames (references, concatenated latents): they make the grid
    longer. HunyuanVideo's text follows the video, and its mask marks the padding at the end.
    """
    frames, height, width = grid
    extra = tokens - frames * height * width
    if not known.text:
        if mask is not None:
            return Dense("self-attention has a mask, which no plan of blocks follows")
        more, rest = divmod(extra, height * width)
        if rest:
            return Dense(
                f"{tokens} tokens are no whole frames of {height} x {width}: what lies between "
                "them is not known"
            )
        return VideoLayout(frames + more, height, width)
    if mask is None:
        return VideoLayout(frames, height, width, extra)
    valid = _read_mask(mask, tokens, extra, batch)
    if isinstance(valid, Dense):
        return valid
    return VideoLayout(frames, height, width, extra, valid_text=valid)


def _read_mask(mask: Tensor, tokens: int, text: int, batch: int) -> Tensor | Dense:
    """Return the number of real text tokens of each sample, `[batch]`, from a mask that is 0 (or
    True) for the video and the real text and very negative (or False) for padding at the end."""
    unknown = Dense(f"the mask {list(mask.shape)} does not mark padding at the end of the text")
    if mask.numel() not in (tokens, tokens * batch):
        return unknown
    rows = mask.reshape(-1, tokens)
    real = rows if mask.dtype == torch.bool else rows > -1e4
    valid = real[:, tokens - text :].sum(dim=1)
    expected = torch.arange(tokens, device=mask.device) < (tokens - text + valid).unsqueeze(1)
    clean = mask.dtype == torch.bool or bool((rows[real] == 0).all())
    if not clean or not torch.equal(real, expected):
        return unknown
    return valid.expand(batch).contiguous()


def weigh_heads(model: object, known: KnownModel, like: Tensor) -> Tensor:
    """Return how much each head's output counts, `[1, layers, heads]` on the CPU; projections that
    have to be asked get tokens of the dtype and on the device of `like`."""
    found = [weigh_projection(projection, like) for projection in known.projections(model)]
    return torch.stack(found).unsqueeze(0)
