import pytest
import torch
from making import normal

from svoo import VideoLayout
from svoo.core.layout import dense_rows, to_heads_first, to_tokens_first
from svoo.errors import ShapeError


def test_text_behind_or_before_the_video() -> None:
    tokens = torch.arange(10.0).view(1, 1, 10, 1)
    behind = VideoLayout(2, 2, 2, text=2)
    before = VideoLayout(2, 2, 2, text=2, text_first=True)
    assert behind.video_part(tokens).flatten().tolist() == list(range(8))
    assert before.video_part(tokens).flatten().tolist() == list(range(2, 10))
    assert (behind.text_start, before.text_start, behind.tokens) == (8, 0, 10)


def test_another_length_is_refused_with_both_numbers() -> None:
    VideoLayout(2, 3, 4).check(1, 24)
    with pytest.raises(
        ShapeError, match=r"2 x 3 x 4 .* \+ 5 text tokens = 29, but the tensors have 30"
    ):
        VideoLayout(2, 3, 4, text=5).check(1, 30)


@pytest.mark.parametrize("text_first", [False, True])
def test_which_tokens_are_padding(text_first: bool) -> None:
    assert VideoLayout(1, 1, 2, text=3).real_tokens() is None
    valid = torch.tensor([3, 1])
    layout = VideoLayout(1, 1, 2, text=3, text_first=text_first, valid_text=valid)
    real, padding = layout.real_tokens(), layout.padding
    assert real is not None and padding is not None
    assert real.int().tolist() == [
        [1, 1, 1, 1, 1],
        [1, 0, 0, 1, 1] if text_first else [1, 1, 1, 0, 0],
    ]
    assert padding.tolist() == [0, 2]


def test_an_empty_grid_is_refused() -> None:
    with pytest.raises(ShapeError, match="0 x 3 x 4"):
        VideoLayout(0, 3, 4)


def test_axes_go_there_and_back() -> None:
    x = normal(2, 5, 3, 4)
    assert to_heads_first(x).shape == (2, 3, 5, 4)
    assert torch.equal(to_tokens_first(to_heads_first(x)), x)


def test_rows_are_copied_only_if_they_must() -> None:
    tokens = normal(1, 2, 5, 8)
    assert dense_rows(tokens.transpose(1, 2)).data_ptr() == tokens.data_ptr()
    columns = dense_rows(tokens.transpose(2, 3))
    assert columns.stride(-1) == 1
    assert torch.equal(columns, tokens.transpose(2, 3))
