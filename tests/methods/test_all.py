"""Every method by name on the real classes of all models, and its settings for each of them."""

from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch

import svoo
from svoo.catalogue import models
from svoo.methods import find_method

NAMES = [row.name for row in svoo.available_methods() if row.name != "dense"]
# The clips have 48 video tokens: settings that leave something out of so few.
SMALL: dict[str, dict[str, Any]] = {
    "spargeattn": {"query_block": 8, "key_block": 4},
    "radial": {"block": 4, "decay": 0.01, "sink": False},
    "sol": {"block": 4},
    "pisa": {"block": 4},
    "xattention": {"block": 4, "stride": 2, "mass": 0.5},
    "svoo": {"query_clusters": 4, "key_clusters": 8, "mass": 0.5},
    "svg2": {"query_clusters": 6000, "key_clusters": 12000, "mass": 0.5},
    "svg1": {"block": 4, "density": 0.2},
    "adacluster": {"query_clusters": 6000, "key_clusters": 12000, "keep": 4000},
    "sparsepr": {"key_clusters": 12000, "probes": 4},
    "clusterattention": {"query_block": 8, "key_block": 8},
    "sta": {"tile": (1, 2, 2), "windows": (1, 1, 1)},
    "vmoba": {"time": 1, "plane": (2, 2), "cube": (1, 2, 2)},
    "dsv": {"sparsity": 0.9},
    "draft": {"sparsity": 0.7, "pool": (2, 2), "dense_sigma": 1.0},
    "vsa": {"sparsity": 0.6, "tile": (2, 2, 2)},
    "bsa": {"mass": 0.3, "least": 2, "tile": (2, 2, 2)},
    "rainfusion": {"block": 4},
    "rainfusion2": {"block": 4},
    "adaspa": {"block": 4},
    "svg-ear": {"query_clusters": 6000, "key_clusters": 12000, "mass": 0.5},
}


def small(name: str) -> svoo.MethodConfig:
    config = find_method(name)
    return replace(config, dense_steps=0, dense_layers=0, strict=True, **SMALL.get(name, {}))


@pytest.fixture(scope="module", params=tiny.PIPELINES)
def clip(request: pytest.FixtureRequest) -> tuple[Any, torch.Tensor]:
    """A pipeline, and its dense clip."""
    pipe = tiny.build(request.param)
    return pipe, tiny.generate(pipe, steps=2)


@pytest.mark.parametrize("name", NAMES)
def test_runs_on_every_model(clip: tuple[Any, torch.Tensor], name: str) -> None:
    pipe, dense = clip
    with svoo.apply(pipe, small(name), profile=None) as handle:
        frames = tiny.generate(pipe, steps=2)
        stats = handle.stats()
    assert frames.shape == dense.shape and bool(frames.isfinite().all())
    assert stats.method == name and stats.sparse_calls > 0
    assert stats.density is not None and 0 < stats.density <= 1
    if name in SMALL:
        assert stats.density < 1 and not torch.equal(frames, dense)


@pytest.mark.parametrize("name", NAMES)
def test_has_settings_for_every_model(name: str) -> None:
    for model in models():
        config = find_method(name, model.name)
        assert config.name == name and config.as_dict()["method"] == name
