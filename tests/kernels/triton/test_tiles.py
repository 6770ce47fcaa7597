from types import SimpleNamespace

import pytest
import torch

from svoo.kernels.triton.ranges import GROUP, PIECE
from svoo.kernels.triton.tiles import (
    Architecture,
    architecture_of,
    assignment_tile,
    attention_tile,
)
from tools.kernel_report import ARCHITECTURES


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tiles_are_made_of_whole_pieces(architecture: Architecture, dtype: torch.dtype) -> None:
    tile = attention_tile(architecture, dtype)
    assert tile.columns % PIECE == 0
    assert tile.columns // PIECE <= GROUP  # more entries than that do not stand behind a list
    assert (tile.products == "tf32x3") == isinstance(architecture, int)
    assert assignment_tile(architecture, dtype).products == tile.products


def test_query_tiles_are_as_large_as_the_issue_asks() -> None:
    for architecture in (90, 100):
        assert attention_tile(architecture, torch.bfloat16).rows >= 128


def test_the_interpreter_takes_the_tiles_of_the_oldest() -> None:
    assert architecture_of(torch.device("cpu")) == 80


def test_hip_tensors_say_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    assert architecture_of(device) == 90
    monkeypatch.setattr(torch.version, "hip", "7.0")
    named = SimpleNamespace(gcnArchName="gfx90a:sramecc+:xnack-")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: named)
    assert architecture_of(device) == "gfx90a"  # its capability is (9, 0) too
