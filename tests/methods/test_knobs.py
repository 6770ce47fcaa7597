"""A knob turns one setting; tuning finds the value that meets a density, or the nearest."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from methods_common import SMALL
from synthetic import clustered_tokens

import svoo
from svoo.core.random import seeded
from svoo.methods import find_method
from svoo.methods.knobs import Knob, tune
from svoo.methods.pisa import PISAConfig

KNOBS = {row.name: row.knob for row in svoo.available_methods() if row.knob is not None}
GRID = svoo.VideoLayout(frames=9, height=6, width=7)
LARGE = svoo.VideoLayout(frames=5, height=16, width=32)


def test_goes_from_least_to_most() -> None:
    config = find_method("pisa")
    assert isinstance(config, PISAConfig)
    assert Knob("density", 0.2, 0.6).turn(config, 0.5).density == pytest.approx(0.4)
    assert Knob("density", 0.01, 1.0, geometric=True).turn(config, 0.5).density == (
        pytest.approx(0.1)
    )
    assert Knob("block", 1, 10, whole=True).turn(config, 0.5).block == 6


@given(st.floats(0.05, 0.95), st.floats(0.5, 3.0))
def test_finds_the_setting_of_any_rising_measure(density: float, power: float) -> None:
    def measure(config: svoo.MethodConfig) -> float:
        assert isinstance(config, PISAConfig)
        return float(config.density**power)

    found = tune(PISAConfig(), Knob("density", 0.0, 1.0), density, measure)
    assert found.density == pytest.approx(density, rel=0.02)
    assert measure(found.config) == found.density


def test_returns_the_nearest_end_of_what_cannot_be_met() -> None:
    def measure(config: svoo.MethodConfig) -> float:
        assert isinstance(config, PISAConfig)
        return 0.4 + config.density / 5

    knob = Knob("density", 0.0, 1.0)
    assert tune(PISAConfig(), knob, 0.1, measure).density == pytest.approx(0.4)
    assert tune(PISAConfig(), knob, 0.9, measure).density == pytest.approx(0.6)


@pytest.mark.parametrize("name", KNOBS)
def test_every_knob_is_a_setting_that_turns_the_right_way(name: str) -> None:
    config = svoo.SVOOConfig.balanced() if name == "svoo" else find_method(name)
    others = {key: value for key, value in SMALL[name].items() if key != KNOBS[name].setting}
    config = replace(config, **{} if name == "svoo" else others)
    grid = LARGE if name == "radial" else GRID  # its windows leave whole small frames out
    tokens = clustered_tokens(1, 2, grid.video, 16, generator=seeded(1))
    least, most = (
        float(svoo.make_plan(*tokens, turned, layout=grid).density().mean())
        for turned in (KNOBS[name].turn(config, share) for share in (0.0, 1.0))
    )
    assert 0 < 1.4 * least < most <= 1
