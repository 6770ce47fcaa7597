"""How the transformer begins: heads as small windows, gates half open, and, once there are clips,
two heads that look at a clip's ends."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from diffusers import WanTransformer3DModel
from torch import Tensor, nn
from torch.nn import functional

from tools.training.muon import Muon

# How far back each head begins to look (frames, rows, columns), block by block, two heads each.
OFFSETS = (
    ((0, 0, 0), (0, 0, 1)),
    ((0, 0, 0), (0, 0, -1)),
    ((0, 1, 0), (0, -1, 0)),
    ((1, 0, 0), (-1, 0, 0)),
    ((0, 0, 1), (0, 1, 0)),
    ((0, 0, -1), (0, -1, 0)),
    ((0, 0, 0), (0, 0, 0)),
)
# Block, head (one that looks at its own place), and -1 for the earliest or 1 for the latest frame.
ENDS = ((0, 0, -1), (1, 0, 1))
# Rows whose logits have a spread of 1.5^2 = 2.25 need 27 % of their keys for mass .95, with a
# spread of 1 they need 74 %: sparse attention is learnt, but it starts from here.
NORM_GAIN = 1.5
WINDOW, GATE, END = 1.3, 0.5, 4.75
WIDE, WIDER = 1, 0.8  # the head of each block that looks farther, and the factor of its logits
ROPE_BASE = 10_000


@torch.no_grad()
def begin(transformer: WanTransformer3DModel) -> None:
    """Let heads begin as small windows and blocks half open.

    Queries and keys get constant parts (biases) on the two fastest RoPE frequencies of each axis:
    their product depends on the distance of two tokens alone and is largest at the head's offset.
    Wan's own start has neither neighbours (a head has to find what is next to it) nor open gates
    (they are drawn from N(0, 1 / width)).
    """
    heads, size = _heads(transformer)
    for block, offsets in zip(transformer.blocks, OFFSETS, strict=True):
        attention = block.attn1
        attention.norm_q.weight.fill_(NORM_GAIN)
        attention.norm_k.weight.fill_(NORM_GAIN)
        attention.to_q.bias.zero_()
        attention.to_k.bias.zero_()
        for head, offset in zip(range(heads), offsets, strict=True):
            for (first, dim), away in zip(_axes(size), offset, strict=True):
                for frequency in range(2):
                    entry = head * size + first + 2 * frequency
                    angle = away * ROPE_BASE ** (-2 * frequency / dim)
                    attention.to_k.bias[entry] = WINDOW
                    attention.to_q.bias[entry] = WINDOW * math.cos(angle)
                    attention.to_q.bias[entry + 1] = -WINDOW * math.sin(angle)
        block.scale_shift_table[:, 2] = GATE  # of self-attention
        block.scale_shift_table[:, 5] = GATE  # of the feed-forward part


@torch.no_grad()
def look_at_ends(transformer: WanTransformer3DModel) -> None:
    """Let one head look at the same place in the earliest frame and one in the latest; to be done
    once, when clips begin.

    Attention with RoPE alone turns equal inputs into equal outputs: in pure noise no token can
    know its time by any mean. But a token of the first frame that looks at the earliest frame sees
    itself, and the feed-forward part can tell "I see myself" (variance 4) from "I see other noise"
    (variance 2). Only the time part of the head's constant query and key is set, on the
    frequencies that turn by about a half and a tenth of a circle in a clip; for single pictures
    nothing changes but the scale of the norm.
    """
    _, size = _heads(transformer)
    dim = _axes(size)[0][1]
    turning = [round(-math.log(speed) / math.log(ROPE_BASE) * dim / 2) for speed in (0.215, 0.046)]
    for block, head, end in ENDS:
        attention = transformer.blocks[block].attn1
        for frequency in range(max(turning) + 1):
            entry, value = head * size + 2 * frequency, END if frequency in turning else 0.0
            attention.to_k.bias[entry], attention.to_k.bias[entry + 1] = value, 0.0
            attention.to_q.bias[entry], attention.to_q.bias[entry + 1] = 0.0, end * value


@torch.no_grad()
def widen(transformer: WanTransformer3DModel) -> None:
    """Let one head of each block look farther; to be done once.

    Trained on what was easy, half of the heads had become windows of a few codes, less than heads
    of large models need.
    """
    _, size = _heads(transformer)
    for block in transformer.blocks:
        block.attn1.norm_q.weight[WIDE * size : (WIDE + 1) * size] *= WIDER


def _heads(transformer: WanTransformer3DModel) -> tuple[int, int]:
    return transformer.config.num_attention_heads, transformer.config.attention_head_dim


def _axes(size: int) -> tuple[tuple[int, int], ...]:
    """Return first dimension and number of dimensions of a head for frames, rows and columns, as
    `WanRotaryPosEmbed` deals them out."""
    across = 2 * (size // 6)
    frames = size - 2 * across
    return (0, frames), (frames, across), (frames + across, across)


@contextmanager
def true_times(transformer: WanTransformer3DModel, times: list[int]) -> Iterator[None]:
    """Let RoPE see the kept code frames of a clip at their true times: training on 2 or 4 of 13
    code frames is then training on the whole clip with tokens left out."""
    rope: Any = transformer.rope

    def positions(hidden: Tensor) -> list[Tensor]:
        """Return cosines and sines `[1, tokens, 1, head size]` for codes `[B, C, T, rows,
        columns]`."""
        frames, rows, columns = hidden.shape[2:]
        found = []
        for table in (rope.freqs_cos, rope.freqs_sin):
            time, y, x = table.split([rope.t_dim, rope.h_dim, rope.w_dim], dim=1)
            parts = (
                time[times].view(frames, 1, 1, -1).expand(-1, rows, columns, -1),
                y[:rows].view(1, rows, 1, -1).expand(frames, -1, columns, -1),
                x[:columns].view(1, 1, columns, -1).expand(frames, rows, -1, -1),
            )
            found.append(torch.cat(parts, dim=-1).reshape(1, frames * rows * columns, 1, -1))
        return found

    rope.forward = positions
    try:
        yield
    finally:
        del rope.forward


def bfloat16_is_faster() -> bool:
    """Try a product of matrices both ways."""
    # Some virtual machines advertise AMX and do not have it: bfloat16 products would crash.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        left, right = torch.ones(2048, 128, dtype=dtype), torch.ones(128, 512, dtype=dtype)
        torch.mm(left, right)  # the first one sets up
        began = time.perf_counter()
        for _ in range(10):
            torch.mm(left, right)
        seconds[dtype] = time.perf_counter() - began
    return seconds[torch.bfloat16] < 0.7 * seconds[torch.float32]


@contextmanager
def precision(*, bfloat16: bool) -> Iterator[None]:
    """Multiply matrices in bfloat16, but do attention in float32: the CPU kernel's backward takes
    1.4-1.8 x as long in bfloat16 at 585-2,340 tokens."""
    if not bfloat16:
        yield
        return
    plain = functional.scaled_dot_product_attention

    def attend(query: Tensor, key: Tensor, value: Tensor, **settings: Any) -> Tensor:  # noqa: ANN401 (torch's own)
        with torch.autocast("cpu", enabled=False):
            mixed = plain(query.float(), key.float(), value.float(), **settings)
        return mixed.to(value.dtype)

    functional.scaled_dot_product_attention = attend  # type: ignore[assignment]
    try:
        with torch.autocast("cpu", torch.bfloat16):
            yield
    finally:
        functional.scaled_dot_product_attention = plain


def optimisers(
    parts: nn.Module, transformer: WanTransformer3DModel, decay: float = 0.01
) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the blocks and AdamW for all else; the rate of each group is
    its `share` of the stage's."""
    matrices = [value for value in transformer.blocks.parameters() if value.ndim == 2]
    known = {id(value) for value in matrices}
    rest = [value for value in parts.parameters() if id(value) not in known]
    return [
        Muon([{"params": matrices, "share": 1.0}], weight_decay=decay),
        torch.optim.AdamW(
            [{"params": rest, "share": 2 / 3}], betas=(0.9, 0.98), weight_decay=decay
        ),
    ]
