from dataclasses import replace

import pytest

from svoo.app.estimate.data import find_card, latencies
from svoo.app.estimate.estimate import estimate
from svoo.app.estimate.roofline import (
    ATTENTION_SHARE,
    FITTED_ON,
    LINEAR_SHARE,
    card_rates,
    count_forward,
    fit_rates,
)
from svoo.app.estimate.tables import whole_video
from svoo.catalogue import find_model
from svoo.methods import find_method

H200 = find_card("h200")


def predicted(name: str, attention: float, linear: float) -> list[tuple[float, float]]:
    """Return predicted and published seconds of a model, dense and SVOO."""
    rates = replace(card_rates(H200), attention=attention, linear=linear)
    found = estimate(whole_video(find_model(name)), rates, find_method("paper", name))
    paper = latencies()[name]
    return [(found.dense_seconds, paper["dense"]), (found.sparse_seconds, paper["svoo"])]


def test_the_rates_are_fitted_on_two_models() -> None:
    assert len(FITTED_ON) == 2

    def predict(attention: float, linear: float) -> list[tuple[float, float]]:
        return [pair for name in FITTED_ON for pair in predicted(name, attention, linear)]

    attention, linear = fit_rates(predict, (337e12, 286e12))
    assert attention / H200.peak == pytest.approx(ATTENTION_SHARE, rel=0.005)
    assert linear / H200.peak == pytest.approx(LINEAR_SHARE, rel=0.005)


@pytest.mark.parametrize("name", latencies())
def test_the_papers_fourteen_latencies(name: str) -> None:
    rates = card_rates(H200)
    dense, sparse = predicted(name, rates.attention, rates.linear)
    assert abs(dense[0] / dense[1] - 1) < 0.10
    assert abs(sparse[0] / sparse[1] - 1) < 0.15


def test_fitting_finds_the_rates_that_made_the_numbers() -> None:
    work = [(3.0, 1.0), (1.0, 5.0), (2.0, 2.0)]

    def seconds(attention: float, linear: float) -> list[float]:
        return [one / attention + other / linear for one, other in work]

    measured = seconds(7.0, 0.5)
    found = fit_rates(
        lambda attention, linear: list(zip(seconds(attention, linear), measured, strict=True)),
        (1.0, 1.0),
    )
    assert found == pytest.approx((7.0, 0.5), rel=1e-3)


def test_counts_by_hand() -> None:
    model = find_model("wan2.1-t2v-14b")
    forward = count_forward(model, 75_600)
    assert forward.attention == 4 * 75_600**2 * 5120
    assert forward.hidden == 2 * 75_600 * 5120
    each = 2 * (6 * 5120**2 + 2 * 5120 * 13_824) * 75_600
    text = 4 * 5120**2 * 512 + 4 * 75_600 * 512 * 5120
    assert forward.linear == 40 * (each + text)
    joint = count_forward(find_model("hunyuanvideo-t2v"), 118_800)
    assert joint.tokens == 118_800 + 256


def test_other_cards_are_said_to_be_modelled() -> None:
    assert "fitted" in card_rates(H200).source
    assert "modelled" in card_rates(find_card("4090")).source
