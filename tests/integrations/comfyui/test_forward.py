from typing import Any

import pytest
import torch
from comfy_stub import HunyuanVideo, WanModel
from making import normal

from integrations.comfyui.forward import Forward, find_step, look_at, name_arguments
from svoo import Dense

OPTIONS: dict[str, Any] = {
    "sample_sigmas": torch.tensor([1.0, 0.9, 0.5, 0.0]),
    "sigmas": torch.tensor([0.9]),
    "cond_or_uncond": [1, 0],
}


def arguments(**more: Any) -> dict[str, Any]:
    return {
        "x": normal(2, 4, 3, 8, 12),
        "context": normal(2, 7, 16),
        "transformer_options": OPTIONS,
        **more,
    }


def test_arguments_are_found_by_name_whatever_their_order() -> None:
    wan = name_arguments(WanModel()._forward, ("x", "t", "text", None, None, "o"), {"more": 1})
    hunyuan = name_arguments(
        HunyuanVideo()._forward, ("x", "t", "text"), {"transformer_options": "o"}
    )
    for found in (wan, hunyuan):
        assert (found["x"], found["context"], found["transformer_options"]) == ("x", "text", "o")
    assert wan["more"] == 1


def test_a_forward_says_where_it_stands() -> None:
    found = look_at(WanModel(), arguments())
    assert isinstance(found, Forward)
    assert (found.grid, found.video, found.step, found.steps) == ((3, 4, 6), 72, 1, 3)
    assert found.branches(4) == ("uncond", "uncond", "cond", "cond")
    assert found.branches(3) == "cond"  # no equal parts: nothing is claimed


@pytest.mark.parametrize(
    ("sigma", "step"), [(1.0, 0), (0.95, 0), (0.9, 1), (0.90005, 1), (0.7, 1), (0.5, 2), (0.0, 2)]
)
def test_a_step_is_that_of_the_noise_level_reached(sigma: float, step: int) -> None:
    assert find_step(torch.tensor([sigma]), OPTIONS["sample_sigmas"]) == step


def test_repeated_calls_of_a_block_are_told_apart() -> None:
    found = look_at(HunyuanVideo(), arguments())
    assert isinstance(found, Forward)
    assert found.find_layer({"block_type": "single", "block_index": 0}) == (1, 0)
    assert found.find_layer({"block_type": "single", "block_index": 0}) == (1, 1)
    assert found.find_layer({"block_type": "double", "block_index": 0}) == (0, 0)
    assert found.find_layer({}) is None
    assert found.find_layer({"block_type": "audio", "block_index": 0}) is None


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"x": normal(2, 4, 8, 12)}, "no video"),
        ({"transformer_options": {}}, "does not tell its steps"),
        ({"context": normal(2, 72, 16)}, "look alike"),
        ({"clip_fea": normal(2, 72, 16)}, "look alike"),
    ],
)
def test_what_cannot_be_known_is_dense(more: dict[str, Any], reason: str) -> None:
    found = look_at(WanModel(), arguments(**more))
    assert isinstance(found, Dense) and reason in found.reason
