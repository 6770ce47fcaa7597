"""Where video, text and padding sit in a token sequence, and the two orders of its axes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from svoo.errors import ShapeError


@dataclass(frozen=True)
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

    def video_part(self, tokens: Tensor) -> Tensor:
        """Return the video tokens of `[B, H, N, D]`, a view."""
        return tokens.narrow(2, self.video_start, self.video)

    def check(self, tokens: int) -> None:
        """Refuse a sequence of another length."""
        if tokens != self.tokens:
            raise ShapeError(
                f"the layout has {self.frames} x {self.height} x {self.width} video tokens + "
                f"{self.text} text "
                f"tokens = {self.tokens}, but the tensors have {tokens}"
            )


def to_heads_first(x_BNHD: Tensor) -> Tensor:
    """Return `[B, H, N, D]` from diffusers' `[B, N, H, D]`, a view."""
    return x_BNHD.transpose(1, 2)


def to_tokens_first(x_BHND: Tensor) -> Tensor:
    """Return diffusers' `[B, N, H, D]` from `[B, H, N, D]`, a view."""
    return x_BHND.transpose(1, 2)


def dense_rows(tokens: Tensor) -> Tensor:
    """Return tokens `[..., D]` with each row's numbers side by side; copies only if they are
    not."""
    return tokens if tokens.stride(-1) == 1 else tokens.contiguous()
