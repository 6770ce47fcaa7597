from dataclasses import replace
from pathlib import Path

import pytest
import torch

from svoo.errors import ConfigError, ModelError
from svoo.plugin.request import Request
from svoo.studies.pipelines import Pipelines


def test_each_pipeline_is_opened_once() -> None:
    pipelines = Pipelines(Request(prompt="", out=Path("out")))
    first = pipelines.open("text", None)
    assert pipelines.open("text", None) is first
    half = pipelines.open("text", "bfloat16")
    assert half is not first and half.transformer.dtype == torch.bfloat16
    assert pipelines.name == "mini" and not pipelines.needs_image()
    weights, profile = pipelines.weights(), pipelines.profile()
    assert len(weights) == 12 and profile is not None and len(profile) == 12
    assert (pipelines.weights(), pipelines.profile()) == (weights, profile)
    for part in (first.transformer, first.vae, first.text_encoder):
        value = next(part.parameters())
        before = value.detach().clone()
        with torch.no_grad():
            value.view(-1)[0] += 1
        assert pipelines.weights() != weights
        with torch.no_grad():
            value.copy_(before)
    assert pipelines.weights() == weights
    assert pipelines.model is not None
    pipelines.model = replace(pipelines.model, takes_image=False)
    with pytest.raises(ConfigError, match="takes no image"):
        pipelines.open("image", None)
    pipelines.model = replace(pipelines.model, takes_image=True)
    assert "ImageToVideo" in type(pipelines.open("image", None)).__name__


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    pipelines = Pipelines(Request(prompt="", out=Path("out"), model=str(tmp_path / "none")))
    assert pipelines.name == "none"  # not the path of this machine
    with pytest.raises(ModelError, match="cannot load"):
        pipelines.needs_image()
