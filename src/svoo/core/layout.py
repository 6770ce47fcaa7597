"""Where video, text and padding sit in a token sequence, and the two orders of its axes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from svoo.errors import ShapeError


@dataclass(frozen=True, eq=False)  # tensors have no single answer to ==
class VideoLayout:
    """A grid of video tokens (`frames x height x width`, in that order) with `text` tokens after
    or before it.

    `valid_text` `[B]` counts each sample's real text tokens; those behind them are padding. None:
    all are real.
    """

    frames: int
    height: int
    width: int
    text: int = 0
    text_first: bool = False
    valid_text: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse an empty grid."""
        if min(self.frames, self.height, self.width) < 1 or self.text < 0:
            raise ShapeError(
                f"a video layout needs a grid of at least 1 x 1 x 1 and no negative text, got "
                f"{self.frames} x {self.height} x {self.width} with {self.text} text tokens"
            )

    @property
    def video(self) -> int:
        """Number of video tokens."""
        return self.frames * self.height * self.width

    @property
    def tokens(self) -> int:
        """Number of tokens in all, padding included."""
        return self.video + self.text

    @property
    def video_start(self) -> int:
        """Place of the first video token."""
        return self.text if self.text_first else 0

    @property
    def text_start(self) -> int:
        """Place of the first text token."""
        return 0 if self.text_first else self.video

    @property
    def padding(self) -> Tensor | None:
        """Number of each sample's padding tokens, `[B]`; None: there is none."""
        return None if self.valid_text is None else self.text - self.valid_text

    def video_part(self, tokens: Tensor) -> Tensor:
        """Return the video tokens of `[B, H, N, D]`, a view."""
        return tokens.narrow(2, self.video_start, self.video)

    def real_tokens(self) -> Tensor | None:
        """Say which tokens are no padding, bool `[B, N]`; None: all are real."""
        if self.valid_text is None:
            return None
        places = torch.arange(self.tokens, device=self.valid_text.device)
        is_video = (places >= self.video_start) & (places < self.video_start + self.video)
        return is_video | (places - self.text_start < self.valid_text.unsqueeze(-1))

    def check(self, batch: int, tokens: int, *, values: bool = True) -> None:
        """Refuse a sequence of another length, and counts of real text (checked if `values`,
        which waits for the device) that are none."""
        if tokens != self.tokens:
            raise ShapeError(
                f"the layout has {self.frames} x {self.height} x {self.width} video tokens + "
                f"{self.text} text "
                f"tokens = {self.tokens}, but the tensors have {tokens}"
            )
        valid = self.valid_text
        if valid is None:
            return
        if valid.shape != (batch,) or valid.is_floating_point() or valid.dtype == torch.bool:
            raise ShapeError(
                f"valid_text must be [{batch}] whole numbers, one a sample, got {valid.dtype} "
                f"{list(valid.shape)}"
            )
        if values and not bool(((valid >= 0) & (valid <= self.text)).all()):
            raise ShapeError(
                f"valid_text must be between 0 and the {self.text} text tokens, got "
                f"{valid.tolist()}"
            )


def to_heads_first(x_BNHD: Tensor) -> Tensor:
    """Return `[B, H, N, D]` from diffusers' `[B, N, H, D]`, a view."""
    return x_BNHD.transpose(1, 2)


def to_tokens_first(x_BHND: Tensor) -> Tensor:
    """Return diffusers' `[B, N, H, D]` from `[B, H, N, D]`, a view."""
    return x_BHND.transpose(1, 2)


def dense_rows(tokens: Tensor) -> Tensor:
    """Return tokens `[..., D]` as a kernel can read them: each row's numbers side by side, and no
    sign still to be changed; copies only if they are not so."""
    tokens = tokens.resolve_neg()
    return tokens if tokens.stride(-1) == 1 else tokens.contiguous()


def plain(tensor: Tensor) -> Tensor:
    """Return a tensor as a kernel can read it: all numbers in order, and no sign still to be
    changed; copies only if they are not so."""
    return tensor.resolve_neg().contiguous()


def empty_rows(tokens: Tensor) -> Tensor:
    """Return new memory of the shape of tokens `[..., D]`, each row's numbers side by side, the
    axes as the tokens have them where that goes together."""
    output = torch.empty_like(tokens)
    if output.stride(-1) == 1:
        return output
    return torch.empty_like(tokens, memory_format=torch.contiguous_format)
