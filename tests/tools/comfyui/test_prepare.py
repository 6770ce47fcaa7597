from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from svoo import SVOOConfig
from svoo.mini import load
from svoo.mini.pipeline import MiniPipeline
from tools.comfyui.prepare import (
    decode,
    rename,
    sample_euler,
    simple_sigmas,
    sparse_euler,
    write,
)


@pytest.fixture(scope="module")
def pipe() -> MiniPipeline:
    return load()


def test_names_are_wans_own() -> None:
    assert rename("blocks.3.attn1.to_out.0.weight") == "blocks.3.self_attn.o.weight"
    assert rename("blocks.3.attn2.norm_q.weight") == "blocks.3.cross_attn.norm_q.weight"
    assert rename("blocks.0.scale_shift_table") == "blocks.0.modulation"
    assert rename("scale_shift_table") == "head.modulation"
    assert rename("proj_out.bias") == "head.head.bias"


def test_the_loader_gets_all_that_it_reads(pipe: MiniPipeline, tmp_path: Path) -> None:
    write(pipe, "a red circle", tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"model.safetensors", "prompt.safetensors", "config.json"}
    weights = load_file(tmp_path / "model.safetensors")
    assert len(weights) == len(pipe.transformer.state_dict())
    assert not any("attn1" in name or "scale_shift" in name for name in weights)


def test_noise_levels_fall_from_one_to_zero() -> None:
    sigmas = simple_sigmas(4, 3.0)
    assert sigmas[0] == 1 and sigmas[-1] == 0 and len(sigmas) == 5
    assert sigmas == sorted(sigmas, reverse=True)
    assert sigmas[2] == pytest.approx(3 * 0.5 / 2)


def test_the_loop_steps_and_leaves_the_pipeline_as_it_was(pipe: MiniPipeline) -> None:
    noise = torch.randn(1, 16, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    text = torch.zeros(1, 4, pipe.transformer.config.text_dim)
    sigmas = simple_sigmas(2, 3.0)

    def dense() -> Tensor:
        return sample_euler(pipe, noise, text, sigmas)

    before = dense()
    exact = SVOOConfig(mass=1, tolerance=None, compensate=False, dense_steps=0, dense_layers=0)
    torch.testing.assert_close(
        sparse_euler(pipe, noise, text, sigmas, exact), before, rtol=1e-3, atol=1e-4
    )
    assert torch.equal(dense(), before)
    assert decode(pipe, before).shape == (5, 32, 32, 3)
