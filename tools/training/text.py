"""Captions as the transformer gets them."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from svoo.mini.vocabulary import DIRECTIONS, OTHER_WORDINGS, STRAIGHT_WORDINGS

_MOTIONS = [wording.format(way) for wording in STRAIGHT_WORDINGS for way in DIRECTIONS]
_MOTIONS += [wording for wordings in OTHER_WORDINGS.values() for wording in wordings]
_MOTION = re.compile(" (" + "|".join(sorted(_MOTIONS, key=len, reverse=True)) + ")(?= )")
_OPPOSITE = {"left": "right", "right": "left", "up": "down", "down": "up"}


def without_motion(caption: str) -> str:
    """Leave the motions out of a caption: what a single picture can show."""
    return _MOTION.sub("", caption)


def opposite(caption: str) -> str:
    """Turn the directions of a caption around."""
    return " ".join(_OPPOSITE.get(word, word) for word in caption.split())


def embed(
    text_encoder: nn.Module, tokenizer: PreTrainedTokenizerFast, captions: list[str], length: int
) -> Tensor:
    """Return embeddings `[captions, length, width]`, zero behind a caption's end, as the Wan
    pipeline makes them."""
    tokens = tokenizer(captions, padding=True, return_tensors="pt")
    mask = tokens["attention_mask"]
    states = text_encoder(tokens["input_ids"], mask).last_hidden_state * mask.unsqueeze(-1)
    return torch.nn.functional.pad(states, (0, 0, 0, length - states.shape[1]))
