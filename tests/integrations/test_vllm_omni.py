"""The callable against a stub of vLLM-Omni's dispatcher, written from its contract."""

import logging
import tomllib
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from making import normal
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo import VideoLayout, make_plan, run_plan
from svoo.errors import ConfigError, ShapeError, StrictError
from svoo.integrations import vllm_omni
from svoo.integrations.settings import choose_config
from svoo.integrations.vllm_omni import attend

GEOMETRY = {
    "latent_shape": torch.tensor([[6, 32, 32], [6, 32, 32]]),
    "patch_size": torch.tensor([[1, 2, 2], [1, 2, 2]]),
}  # 6 x 16 x 16 tokens


def dispatch(
    function: Any, tokens: list[Tensor], static: dict[str, Any], forward: dict[str, Any]
) -> Tensor:
    """Call a plug-in as the dispatcher does: settings below the state of the forward, None left
    out, a mask only for those who say that they follow one."""
    params = {name: value for name, value in {**static, **forward}.items() if value is not None}
    if "attn_mask" in params and not getattr(function, "capabilities", {}).get(
        "supports_attention_mask"
    ):
        raise ValueError("the plug-in does not advertise 'supports_attention_mask'")
    output: Tensor = function(*tokens, params, is_causal=False, softmax_scale=0.3)
    assert output.shape == tokens[0].shape
    return output


def tokens(batch: int = 2, count: int = 1536, seed: int = 0) -> list[Tensor]:
    """Return query, key and value: sharp enough that no method keeps everything."""
    groups = torch.arange(count) % 24  # tokens of less structure would stay dense
    return [
        3 * normal(batch, 24, 2, 8, seed=seed + side)[:, groups]
        + 0.2 * normal(batch, count, 2, 8, seed=seed + side + 9)
        for side in range(3)
    ]


def dense(sides: list[Tensor]) -> Tensor:
    query, key, value = (side.transpose(1, 2) for side in sides)
    return scaled_dot_product_attention(query, key, value, scale=0.3).transpose(1, 2)


def test_the_entry_points_resolve() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]
    found = EntryPoint("svoo", points["vllm_omni.sparse_attn"]["svoo"], "").load()
    assert found is attend
    assert callable(EntryPoint("svoo", points["sglang.multimodal_gen.plugins"]["svoo"], "").load())


@pytest.mark.parametrize("method", ["svoo", "svg2", "spargeattn"])
def test_it_runs_the_plan_of_the_chosen_method(method: str) -> None:
    sides = tokens()
    static = {"method": method, "quality": "careful", "least_tokens": 0, "dense_steps": 0}
    forward = {**GEOMETRY, "denoise_step_idx": 3, "total_denoise_steps": 8}
    found = dispatch(attend, sides, {**static, "strict": True}, forward)
    query, key, value = (side.transpose(1, 2) for side in sides)
    config = replace(choose_config(method, "careful", 0), dense_layers=0)
    plan = make_plan(
        query, key, value, config, layout=VideoLayout(6, 16, 16), step=3, steps=8, scale=0.3
    )
    assert float(plan.density().mean()) < 0.95
    expected = run_plan(query, key, value, plan, scale=0.3).transpose(1, 2)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_nothing_is_remembered_between_calls() -> None:
    """Layers and branches come in any order: a call must not depend on those before it."""
    static = {"method": "svg2", "least_tokens": 0, "dense_steps": 0}
    forward = {**GEOMETRY, "denoise_step_idx": 3, "total_denoise_steps": 8}
    first, second = tokens(seed=0), tokens(seed=7)
    alone = dispatch(attend, first, static, forward)
    dispatch(attend, second, static, forward)
    assert torch.equal(dispatch(attend, first, static, forward), alone)


@pytest.mark.parametrize("step", [0, torch.tensor([0, 5])])
def test_the_warm_up_counts_the_earliest_sample(step: Any) -> None:
    sides = tokens()
    forward = {**GEOMETRY, "denoise_step_idx": step, "total_denoise_steps": torch.tensor([8, 8])}
    static = {"method": "svg2", "least_tokens": 0, "dense_steps": 1}
    torch.testing.assert_close(dispatch(attend, sides, static, forward), dense(sides))


def test_without_a_grid_svoo_takes_all_tokens_and_others_say_what_they_need() -> None:
    sides = tokens(count=61)
    assert dispatch(attend, sides, {"least_tokens": 0}, {}).isfinite().all()
    with pytest.raises(ConfigError, match="needs the grid of the video"):
        dispatch(attend, sides, {"least_tokens": 0, "method": "radial", "dense_steps": 0}, {})


@pytest.mark.parametrize(
    ("params", "count", "why"),
    [
        ({**GEOMETRY, "least_tokens": 0}, 1540, "grid 6 x 16 x 16 is not all of the 1540 tokens"),
        ({}, 1536, "1536 tokens, below 8000"),
    ],
)
def test_dense_calls_say_why_once_and_strict_refuses(
    params: dict[str, Any],
    count: int,
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm_omni, "_said", set())
    sides = tokens(count=count)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            torch.testing.assert_close(dispatch(attend, sides, params, {}), dense(sides))
    assert [why in record.message for record in caplog.records] == [True]
    with pytest.raises(StrictError, match="strict: attention would be dense"):
        dispatch(attend, sides, {**params, "strict": True}, {})


def test_a_mask_is_refused_with_a_sentence() -> None:
    sides = tokens()
    query, key, value = sides
    mask = torch.ones(2, 1536, dtype=torch.bool)
    with pytest.raises(ValueError, match="does not advertise"):
        dispatch(attend, sides, {}, {"attn_mask": mask})
    with pytest.raises(ConfigError, match="svoo follows no attn_mask"):
        attend(query, key, value, {"attn_mask": mask})
    with pytest.raises(ConfigError, match="svoo follows no full_attn_spans"):
        attend(query, key, value, {"full_attn_spans": [(0, 1)]})
    with pytest.raises(ConfigError, match="not causal"):
        attend(query, key, value, {}, is_causal=True)
    with pytest.raises(ShapeError, match="1536 queries and 7 keys"):
        attend(query, key[:, :7], value[:, :7], {})
