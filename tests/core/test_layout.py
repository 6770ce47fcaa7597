import pytest
import torch
from making import normal

from svoo import VideoLayout
from svoo.core.layout import dense_rows, empty_rows, plain, to_heads_first, to_tokens_first
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


@pytest.mark.parametrize("strides", [(0, 1, 1, 1), (0, 0, 0, 0), (1, 2, 40, 8), (120, 40, 8, 1)])
def test_new_rows_stand_side_by_side(strides: tuple[int, ...]) -> None:
    tokens = torch.zeros(500).as_strided((1, 3, 5, 8), strides)
    rows = empty_rows(tokens)
    assert rows.shape == tokens.shape and rows.stride(-1) == 1
    assert rows.untyped_storage().nbytes() == 4 * tokens.numel()  # every number has its place


def test_new_rows_keep_the_order_of_the_axes() -> None:
    tokens = torch.zeros(2, 5, 3, 8).transpose(1, 2)
    assert empty_rows(tokens).stride() == tokens.stride()


def test_plain_numbers_are_copied_only_if_need_be() -> None:
    numbers = torch.arange(6).view(2, 3)
    assert plain(numbers) is numbers
    for view in (numbers.mT, torch._neg_view(numbers)):
        found = plain(view)
        assert torch.equal(found, view) and found.is_contiguous() and not found.is_neg()
