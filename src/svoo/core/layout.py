"""Which tokens of a sequence are video, text and padding; tensors as kernels can read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from svoo.errors import ShapeError


@dataclass(frozen=True, eq=False)  # tensors have no single answer to ==
class VideoLayout:
    """A sequence of video tokens (a grid `frames x height x width`, in that order) and text.

    The `text` tokens come after the video, or before it if `text_first`. `valid_text` `[B]` is the
    number of real text tokens of each sample; the text tokens after these are padding. None: there
    is no padding.
    """

    frames: int
    height: int
    width: int
    text: int = 0
    text_first: bool = False
    valid_text: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse an empty grid and a negative number of text tokens."""
        counts = self.frames, self.height, self.width, self.text
        if not all(isinstance(count, int) for count in counts):
            raise ShapeError(f"a video layout needs whole numbers of tokens, got {counts}")
        if min(counts[:3]) < 1 or self.text < 0:
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
        """Index of the first video token."""
        return self.text if self.text_first else 0

    @property
    def text_start(self) -> int:
        """Index of the first text token."""
        return 0 if self.text_first else self.video

    @property
    def padding(self) -> Tensor | None:
        """Number of padding tokens of each sample, `[B]`; None: there is no padding."""
        return None if self.valid_text is None else self.text - self.valid_text

    def video_part(self, tokens: Tensor) -> Tensor:
        """Return the video tokens of `[B, H, N, D]`, a view."""
        return tokens.narrow(2, self.video_start, self.video)

    def real_tokens(self) -> Tensor | None:
        """Return which tokens are not padding, bool `[B, N]`; None: none is padding."""
        if self.valid_text is None:
            return None
        index = torch.arange(self.tokens, device=self.valid_text.device)
        is_video = (index >= self.video_start) & (index < self.video_start + self.video)
        return is_video | (index - self.text_start < self.valid_text.unsqueeze(-1))

    def check(self, batch: int, tokens: int, *, values: bool = True) -> None:
        """Refuse a sequence of another length and a `valid_text` of another shape or type.

        `values=True` also refuses entries of `valid_text` outside 0 .. text, which waits for the
        device.
        """
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
                f"valid_text must be [{batch}] whole numbers, one per sample, got {valid.dtype} "
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
    """Return tokens `[..., D]` as a kernel can read them: the last stride is 1, and no lazy
    negation (`torch._neg_view`) is pending. Copies only where that is not so."""
    tokens = tokens.resolve_neg()
    return tokens if tokens.stride(-1) == 1 else tokens.contiguous()


def plain(tensor: Tensor) -> Tensor:
    """Return a tensor as a kernel can read it: contiguous, and no lazy negation pending. Copies
    only where that is not so."""
    return tensor.resolve_neg().contiguous()


def empty_rows(tokens: Tensor) -> Tensor:
    """Return an uninitialised tensor shaped like tokens `[..., D]`, with last stride 1.

    The other strides follow those of the tokens where possible; else it is contiguous.
    """
    output = torch.empty_like(tokens)
    if output.stride(-1) == 1:
        return output
    return torch.empty_like(tokens, memory_format=torch.contiguous_format)
