import math
from typing import Any

import pytest

from svoo import SVOOConfig, models
from svoo.errors import ConfigError
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
        ("mass", None),
        ("theta", "x"),
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


def test_default_mode_takes_what_was_tuned_on_a_model() -> None:
    mini, wan = SVOOConfig.for_model("mini"), SVOOConfig.for_model("wan2.1-t2v-1.3b")
    assert (mini.mass, mini.dense_steps, mini.ramp, mini.fineness) == (0.45, 0.0, 0.5, 3.5)
    assert (wan.mass, wan.dense_steps, wan.ramp, wan.fineness) == (
        SVOOConfig().mass,
        0.2,
        0.0,
        SVOOConfig().fineness,
    )
