import pytest
import torch

from svoo.kernels.triton.ranges import PIECE
from svoo.kernels.triton.tiles import architecture_of, assignment_tile, attention_tile
from tools.kernel_report import ARCHITECTURES


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tiles_are_made_of_whole_pieces(architecture: int, dtype: torch.dtype) -> None:
    tile = attention_tile(architecture, dtype)
    assert tile.columns % PIECE == 0
    for size in (tile.rows, tile.columns, *vars(assignment_tile(dtype)).values()):
        assert size > 0


def test_query_tiles_are_as_large_as_the_issue_asks() -> None:
    for architecture in (90, 100):
        assert attention_tile(architecture, torch.bfloat16).rows >= 128


def test_the_interpreter_takes_the_tiles_of_the_oldest() -> None:
    assert architecture_of(torch.device("cpu")) == 80
