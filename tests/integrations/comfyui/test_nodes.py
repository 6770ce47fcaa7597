"""The nodes as ComfyUI sees them. The names below are in saved workflows: they never change."""

import inspect
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from comfy_stub import Patcher, WanModel, sample
from making import normal

from integrations.comfyui import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from integrations.comfyui.nodes import SVOOCompare, SVOOReport, SVOOSparseAttention
from svoo import SVOOConfig
from svoo.errors import ConfigError

PACK = Path(__file__).parents[3] / "integrations" / "comfyui"
OPTIONS = SVOOSparseAttention.INPUT_TYPES()["required"]


def defaults() -> dict[str, Any]:
    return {name: row[1]["default"] for name, row in OPTIONS.items() if name != "model"}


def test_names_of_nodes_and_options_are_for_ever() -> None:
    assert list(NODE_CLASS_MAPPINGS) == ["SVOOSparseAttention", "SVOOReport", "SVOOCompare"]
    assert list(NODE_DISPLAY_NAME_MAPPINGS) == list(NODE_CLASS_MAPPINGS)
    assert defaults() == {
        "method": "svoo",
        "quality": "balanced",
        "dense_steps": -1,
        "dense_blocks": "",
        "end": 1.0,
        "least_tokens": 8000,
        "strict": False,
        "verbose": False,
    }
    assert SVOOSparseAttention.RETURN_NAMES == ("model", "report")
    assert SVOOReport.RETURN_NAMES == ("latent", "text")
    assert SVOOCompare.RETURN_NAMES == ("psnr", "ssim", "text")


@pytest.mark.parametrize("node", NODE_CLASS_MAPPINGS.values())
def test_the_function_takes_exactly_the_inputs(node: Any) -> None:
    inputs = [name for part in node.INPUT_TYPES().values() for name in part]
    assert list(inspect.signature(getattr(node, node.FUNCTION)).parameters)[1:] == inputs
    rows = [row for part in node.INPUT_TYPES().values() for row in part.values()]
    assert all(len(row[1]["tooltip"]) > 10 for row in rows)


def test_a_workflow_from_model_to_report_and_comparison() -> None:
    model = Patcher(WanModel())
    clone, report = SVOOSparseAttention().apply(
        model, **{**defaults(), "least_tokens": 0, "verbose": True}
    )
    assert clone is not model and clone.model is model.model
    assert report.config == SVOOConfig.balanced()
    latent, text = normal(1, 4, 3, 24, 24), normal(1, 7, 16)
    made, dense = sample(clone, latent, text)[-1], sample(model, latent, text)[-1]
    shown = SVOOReport().report({"samples": made}, report)
    passed, words = shown["result"]
    assert passed["samples"] is made and shown["ui"]["text"] == [words]
    assert words.startswith("SVOO sparse attention: svoo (balanced), 2 steps, 432 video tokens")
    found = SVOOCompare().compare({"samples": dense}, {"samples": made})["result"]
    assert found[0] > 20 and found[1] > 0.5 and found[2].startswith("latents: PSNR")
    frames = torch.rand(2, 16, 16, 3, generator=torch.Generator().manual_seed(0))
    both = SVOOCompare().compare({"samples": dense}, {"samples": made}, frames, frames)
    assert both["result"][0] == float("inf") and "latents:" in both["result"][2]


def test_bad_input_is_refused_with_a_sentence() -> None:
    with pytest.raises(ConfigError, match="dense_blocks must be"):
        SVOOSparseAttention().apply(Patcher(WanModel()), **{**defaults(), "dense_blocks": "x"})
    with pytest.raises(ValueError, match="SVOO Compare needs a pair"):
        SVOOCompare().compare(latent={"samples": torch.zeros(1)})


def test_the_registry_finds_what_it_needs() -> None:
    facts = tomllib.loads((PACK / "pyproject.toml").read_text())
    assert facts["project"]["name"] == "svoo-sparse-attention"
    assert {"PublisherId", "DisplayName"} <= set(facts["tool"]["comfy"])
    assert any(need.startswith("svoo>=") for need in facts["project"]["dependencies"])


@pytest.mark.parametrize("path", sorted((PACK / "example_workflows").glob("*.json")), ids=str)
def test_example_workflows_use_our_options_in_their_order(path: Path) -> None:
    workflow = json.loads(path.read_text())
    nodes = {node["type"]: node for node in workflow["nodes"]}
    values = nodes["SVOOSparseAttention"]["widgets_values"]
    assert len(values) == len(defaults())
    for value, default in zip(values, defaults().values(), strict=True):
        assert type(value) is type(default)
    numbers = {node["id"] for node in workflow["nodes"]}
    for _, source, _, target, _, _ in workflow["links"]:
        assert {source, target} <= numbers
    assert {"SVOOReport", "SVOOCompare"} <= set(nodes)
    assert path.with_suffix(".jpg").exists()
