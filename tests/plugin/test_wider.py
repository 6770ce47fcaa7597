"""Models beyond the paper: the same seam, tiny random weights."""

from typing import Any

import pytest
import tiny
import torch
from diffusers import LTXConditionPipeline, SkyReelsV2DiffusionForcingPipeline
from PIL import Image

from svoo import SVOOConfig
from svoo.plugin.apply import apply

SETTINGS: dict[str, Any] = {"query_clusters": 4, "key_clusters": 8, "dense_layers": 0}
# Mochi's rope asks for an autocast that the CPU has not; guiders warn that they are new.
pytestmark = pytest.mark.filterwarnings("ignore:In CPU autocast")


@pytest.mark.parametrize("name", tiny.WIDER)
def test_keeping_everything_is_the_model_itself_and_undone_it_is_again(name: str) -> None:
    pipe = tiny.build(name)
    plain = tiny.generate(pipe)
    with apply(pipe, SVOOConfig(mass=1.0, dense_steps=0, **SETTINGS), profile=None) as handle:
        whole = tiny.generate(pipe)
        rows = handle.stats().layers
    torch.testing.assert_close(whole, plain, atol=1e-4, rtol=0)
    assert all(row.sparse_calls > 0 and row.dense_calls == 0 for row in rows)
    assert len(rows) == (5 if name == "wan-vace" else 3)
    assert torch.equal(tiny.generate(pipe), plain)


@pytest.mark.parametrize("name", tiny.WIDER)
def test_sparse_is_sparse(name: str) -> None:
    pipe = tiny.build(name)
    plain = tiny.generate(pipe)
    with apply(pipe, SVOOConfig(mass=0.5, dense_steps=1, **SETTINGS)) as handle:
        sparse = tiny.generate(pipe)
        stats = handle.stats()
    assert 0 < (stats.density or 0) < 0.8
    assert stats.steps == 4 and stats.calls == 1 and not stats.notes
    reasons = {reason for row in stats.layers for reason in row.dense_reasons}
    assert reasons == {"warm-up: the first 1 of 4 steps are dense"}
    assert not torch.equal(sparse, plain)
    assert bool(torch.isfinite(sparse).all())


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # its scheduler, with numpy 2
def test_tokens_with_coordinates_of_their_own_run_dense() -> None:
    """LTXConditionPipeline places its tokens itself and names no grid."""
    pipe = LTXConditionPipeline(**tiny.build("ltx-video").components)
    pipe.set_progress_bar_config(disable=True)
    arguments = tiny.call_arguments(tiny.build("ltx-video"), 3) | {
        "image": Image.new("RGB", (256, 256)),
        "output_type": "latent",
    }

    def generate() -> torch.Tensor:
        frames: torch.Tensor = pipe(**arguments, generator=torch.Generator().manual_seed(0)).frames
        return frames

    plain = generate()
    with apply(pipe, SVOOConfig(mass=0.5, dense_steps=0, **SETTINGS), profile=None) as handle:
        assert torch.equal(generate(), plain)
        assert "dense calls: the grid of the video is not known" in handle.summary()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "24 calls on the"),
        (
            {"ar_step": 2, "causal_block_size": 1},
            "note: the loop is longer than the scheduler's 4",
        ),
        ({"ar_step": 1, "causal_block_size": 3}, "dense calls: an attention mask [1, 1, 48, 48]"),
    ],
    ids=["all frames at once", "frame by frame", "causal blocks"],
)
def test_diffusion_forcing(settings: dict[str, int], said: str) -> None:
    pipe = SkyReelsV2DiffusionForcingPipeline(**tiny.build("skyreels-v2").components)
    pipe.set_progress_bar_config(disable=True)
    arguments = tiny.call_arguments(tiny.build("skyreels-v2")) | settings
    arguments |= {"output_type": "latent", "base_num_frames": 9}

    def generate() -> torch.Tensor:
        frames: torch.Tensor = pipe(**arguments, generator=torch.Generator().manual_seed(0)).frames
        return frames

    plain = generate()
    with apply(pipe, SVOOConfig(mass=1.0, dense_steps=0, **SETTINGS), profile=None) as handle:
        torch.testing.assert_close(generate(), plain, atol=1e-3, rtol=0)
        assert said in handle.summary()
