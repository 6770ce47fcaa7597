import math
from dataclasses import replace
from typing import Any

import pytest

from svoo import SVOOConfig, models
from svoo.errors import ConfigError
from svoo.methods.svoo.config import TOLERANCE
from svoo.methods.warm_up import count_dense_steps


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("mass", 0.0),
        ("fineness", 0.0),
        ("fineness", math.inf),
        ("mass", 1.01),
        ("mass", math.nan),
        ("theta", -0.1),
        ("dense_steps", 1.5),
        ("dense_steps", -1),
        ("dense_layers", -1),
        ("dense_layers", True),
        ("recluster_every", 0),
        ("query_clusters", 0),
        ("key_clusters", 2.5),
        ("iterations", 0),
        ("clustering", "spectral"),
        ("budget_unit", "pages"),
        ("budget_range", (0.3, 0.2)),
        ("budget_range", (0.1, 0.2, 0.3)),
        ("mass", "a"),
        ("theta", "x"),
        ("tolerance", -1.0),
        ("tolerance", math.nan),
        ("careful_start", 1.1),
        ("careful_start", math.nan),
        ("seed", 0.5),
        ("seed", -1),
        ("compensate", "no"),
        ("share_branches", None),
        ("backend", None),
    ],
)
def test_bad_values_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{setting} must be .* got "):
        SVOOConfig(**{setting: value})


@pytest.mark.parametrize(
    ("dense", "steps", "count"),
    [
        (0.2, 50, 10),
        (0.2, 40, 8),
        (0.1, 50, 5),
        (0.2, 4, 1),
        (0.0, 50, 0),
        (1.0, 7, 7),
        (3, 50, 3),
        (9, 4, 4),
    ],
)
def test_dense_steps_as_a_fraction_or_a_count(dense: float, steps: int, count: int) -> None:
    assert count_dense_steps(SVOOConfig(dense_steps=dense), steps) == count


def test_tolerance_or_mass_decides_never_both() -> None:
    assert (SVOOConfig().tolerance, SVOOConfig().mass) == (TOLERANCE, None)
    assert SVOOConfig(mass=0.5).tolerance is None
    with pytest.raises(ConfigError, match="^tolerance must be None where mass decides"):
        SVOOConfig(mass=0.5, tolerance=0.01)
    with pytest.raises(ConfigError, match="^tolerance must be None where mass decides"):
        replace(SVOOConfig(), mass=0.5)
    with pytest.raises(ConfigError, match="^compensate must be "):
        SVOOConfig(compensate="mean")


PAPER = {
    "method": "svoo",
    "dense_steps": 0.2,
    "dense_layers": 1,
    "compensate": False,
    "backend": "auto",
    "seed": 0,
    "measure_recall": False,
    "strict": False,
    "tolerance": None,
    "groups": 8,
    "densest": 0.6,
    "mass": 0.9,
    "theta": 0.1,
    "ramp": 0.0,
    "recluster_every": 20,
    "query_clusters": None,
    "key_clusters": None,
    "fineness": 1.0,
    "iterations": 2,
    "clustering": "co",
    "share_branches": True,
    "budget_unit": "clusters",
    "budget_range": (0.0, 1.0),
}
RELEASE = {"theta": 1.0, "budget_unit": "whole clusters"}


def fields(config: SVOOConfig) -> dict[str, Any]:
    """All settings but those that only a tolerance looks at and that came after it."""
    return {name: value for name, value in config.as_dict().items() if name in PAPER}


def test_paper_and_release_are_what_they_were_before_the_far_field() -> None:
    assert fields(SVOOConfig.paper()) == PAPER
    assert fields(SVOOConfig.paper("mini")) == PAPER | {"dense_layers": 0, "recluster_every": 8}
    assert fields(SVOOConfig.paper("wan2.1-t2v-14b")) == PAPER
    assert fields(SVOOConfig.paper("hunyuanvideo-i2v")) == PAPER | {"dense_steps": 0.1}
    assert fields(SVOOConfig.release("wan2.1-t2v-1.3b")) == PAPER | RELEASE | {
        "dense_steps": 10,
        "dense_layers": 0,
        "budget_range": (0.15, 0.2),
    }
    assert fields(SVOOConfig.release("hunyuanvideo-t2v")) == PAPER | RELEASE | {
        "dense_steps": 5,
        "mass": 0.88,
        "recluster_every": 50,
        "budget_range": (0.05, 0.1),
    }


def test_the_paper_preset_has_the_papers_numbers() -> None:
    paper = SVOOConfig.paper()
    assert (paper.mass, paper.theta, paper.dense_steps, paper.dense_layers) == (0.9, 0.1, 0.2, 1)
    assert (paper.recluster_every, paper.iterations, paper.compensate) == (20, 2, False)
    assert (paper.budget_unit, paper.fineness) == ("clusters", 1.0)
    assert SVOOConfig.paper("hunyuanvideo-t2v").dense_steps == 0.1
    assert SVOOConfig.paper("mini").dense_layers == 0


def test_every_model_of_the_paper_has_a_release_preset() -> None:
    for model in models():
        if model.name == "mini":
            with pytest.raises(ConfigError, match="released no settings for 'mini'"):
                SVOOConfig.release("mini")
        else:
            config = SVOOConfig.release(model.name)
            assert config.theta == 1.0
            assert (config.budget_unit, config.fineness) == ("whole clusters", 1.0)
    assert SVOOConfig.release("wan2.1-i2v-14b").budget_range == (0.10, 0.15)
    assert SVOOConfig.release("hunyuanvideo-i2v").mass == 0.88
    assert SVOOConfig.release("wan2.1-t2v-1.3b").dense_layers == 0


def test_default_mode_is_the_same_for_every_model() -> None:
    for model in models():
        assert SVOOConfig.for_model(model.name) == SVOOConfig() == SVOOConfig.balanced()
    assert (SVOOConfig().dense_steps, SVOOConfig().compensate) == (0, "far")
    knob = [
        config.tolerance or 0.0
        for config in (SVOOConfig.careful(), SVOOConfig(), SVOOConfig.fast())
    ]
    assert knob == sorted(knob) and len(set(knob)) == 3


def test_the_docstring_has_the_default_tolerance() -> None:
    assert f"(None: {TOLERANCE})" in (SVOOConfig.__doc__ or "")


@pytest.mark.parametrize(("steps", "first"), [(20, 2), (50, 5), (8, 1), (4, 1), (1, 1)])
def test_the_first_steps_have_a_quarter_of_the_tolerance(steps: int, first: int) -> None:
    config = SVOOConfig(tolerance=0.4)
    found = [config.tolerance_at(step, steps) for step in range(steps)]
    assert found == pytest.approx([0.1] * first + [0.4] * (steps - first))
    for same in (replace(config, careful_start=0.0), config.always_sparse()):
        assert same.tolerance_at(0, steps) == 0.4
