"""Sessions and single calls that cannot be are refused by name, not by an error from inside."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from making import normal

import svoo
from svoo import Session, SVOOConfig, VideoLayout, make_plan, sparse_attention
from svoo.errors import ConfigError, ProfileError, ShapeError, SVOOError
from svoo.profiles.profile import Profile

COUNTS: dict[str, Any] = {"steps": 4, "layers": 2, "heads": 2}
QUERY, KEY, VALUE = TOKENS = tuple(normal(2, 2, 24, 8, seed=seed) for seed in range(3))


@pytest.mark.parametrize("config", [None, {}, "svoo", SVOOConfig, 5])
def test_a_session_needs_settings(config: Any) -> None:
    with pytest.raises(ConfigError, match="config must be a MethodConfig such as"):
        Session(config, **COUNTS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be a whole number >= 1, got 0"),
        ({"steps": True}, "steps must be a whole number >= 1, got True"),
        ({"steps": None}, "steps must be a whole number"),
        ({"layers": 1.5}, "layers must be a whole number"),
        ({"heads": "2"}, "heads must be a whole number"),
        ({"stages": 0}, "stages must be a whole number >= 1, got 0"),
        ({"sigmas": [1.0, 0.5, 0.2, 0.1]}, "sigmas must be a torch.Tensor, got list"),
        ({"sigmas": torch.ones(3)}, r"sigmas must have one number for each of the 4 .* \[3\]"),
        ({"stage_of_step": torch.zeros(5)}, "stage_of_step must have one number for each"),
        ({"profile": "auto"}, r"profile must be a Profile \(svoo.Profile.load"),
    ],
)
def test_runs_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SVOOError, match=message):
        Session(SVOOConfig(), **(COUNTS | changes))


def test_a_profile_of_another_model_is_refused() -> None:
    masses = torch.tensor([0.95], dtype=torch.float64)
    sigma = torch.tensor([1.0, 0.8, 0.5, 0.2], dtype=torch.float64)
    profile = Profile(torch.full((1, 4, 3, 2, 1), 0.5), sigma, torch.zeros(4).long(), masses)
    with pytest.raises(ProfileError, match="has 3 layers x 2 heads, the model has 2 x 2"):
        Session(SVOOConfig(tolerance=None), profile=profile, **COUNTS)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"step": -1}, "step must be a whole number >= 0, got -1"),
        ({"step": 0.5}, "step must be a whole number >= 0, got 0.5"),
        ({"step": None}, "step must be a whole number"),
        ({"step": True}, "step must be a whole number"),
        ({"layer": 2}, "layer must be below the 2 layers, got 2"),
        ({"layer": -1}, "layer must be a whole number >= 0"),
        ({"stage": 1}, "stage must be below the 1 stages, got 1"),
        ({"head_offset": 1}, "query has 2 heads from number 1, but the session was made for 2"),
        ({"head_offset": -1}, "head_offset must be a whole number >= 0"),
        ({"branch": 5}, "branch must be a name, or 2 names, one per sample, got 5"),
        ({"branch": []}, "branch must be a name, or 2 names"),
        ({"branch": ["cond"]}, "branch must be a name, or 2 names"),
        ({"branch": ["cond", 1]}, "branch must be a name, or 2 names"),
        ({"layout": (2, 3, 4)}, "layout must be a VideoLayout"),
        ({"layout": VideoLayout(2, 3, 5)}, "= 30, but the tensors have 24"),
    ],
)
def test_calls_that_cannot_be(where: dict[str, Any], message: str) -> None:
    session = Session(SVOOConfig(), **COUNTS)
    with pytest.raises(SVOOError, match=message):
        session.attend(QUERY, KEY, VALUE, **({"step": 0, "layer": 0} | where))
    assert not session.stats().layers  # a refused call is not counted


def test_a_step_beyond_the_last_is_taken() -> None:
    session = Session(SVOOConfig(backend="reference"), **COUNTS)
    output = session.attend(QUERY, KEY, VALUE, step=4, layer=1, branch=["cond", "uncond"])
    assert output.isfinite().all()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"step": 1}, "steps must be given with step"),
        ({"step": 4, "steps": 4}, "step must be below the 4 steps, got 4"),
        ({"step": -1, "steps": 4}, "step must be a whole number >= 0"),
        ({"step": 1.5, "steps": 4}, "step must be a whole number"),
        ({"step": 1, "steps": "4"}, "steps must be a whole number"),
        ({"layer": 2, "layers": 2}, "layer must be below the 2 layers, got 2"),
        ({"layers": 0}, "layers must be a whole number >= 1, got 0"),
    ],
)
def test_plans_of_steps_that_cannot_be(where: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan(QUERY, KEY, VALUE, SVOOConfig(), **where)


@pytest.mark.parametrize("entrance", [make_plan, sparse_attention])
def test_layouts_and_generators_that_are_none(entrance: Any) -> None:
    for bad in ("grid", (2, 3, 4)):
        with pytest.raises(ConfigError, match="layout must be a VideoLayout"):
            entrance(*TOKENS, SVOOConfig(), layout=bad)
    for chance in (3, np.random.default_rng(0)):
        with pytest.raises(ConfigError, match=r"generator must be a torch\.Generator or None"):
            entrance(*TOKENS, SVOOConfig(), generator=chance)


def test_a_state_that_is_none() -> None:
    with pytest.raises(ConfigError, match="state must be a LabelState or None, got 'old'"):
        sparse_attention(QUERY, KEY, VALUE, SVOOConfig(), state="old")  # type: ignore[arg-type]


def test_counts_and_masses_that_are_no_numbers() -> None:
    query, key = QUERY, KEY
    with pytest.raises(ConfigError, match="query_clusters must be between 1 and the 24"):
        svoo.co_cluster(query, key, 1.5, 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="iterations must be a whole number"):
        svoo.co_cluster(query, key, 2, 3, iterations=1.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="initial must be"):
        svoo.co_cluster(query, key, 2, 3, initial=5)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="initial query centroids must be a torch.Tensor"):
        svoo.co_cluster(query, key, 2, 3, initial=(1, 2))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="rows must be between 1 and the 24"):
        svoo.required_density(query, key, rows=1.5)  # type: ignore[arg-type]
    for mass in ("0.9", math.nan):
        with pytest.raises(ConfigError, match=r"mass must be in \(0, 1\]"):
            svoo.required_density(query, key, mass=mass)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="needs whole numbers of tokens"):
        VideoLayout(1.5, 2, 2)  # type: ignore[arg-type]
