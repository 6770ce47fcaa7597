import pytest
import studying
import torch
from synthetic import clustered_tokens

from svoo.core.random import seeded
from svoo.studies.recall import BUDGETS, CO, LONG, SHORT, RecallStudy, at_density, measure


def test_curves_rise_and_keep_to_the_budget() -> None:
    query, key, _ = clustered_tokens(1, 2, 2400, 16, generator=seeded(0))
    curves = measure(query, key, None, 0)
    assert list(curves) == [CO, SHORT, LONG]
    for curve in curves.values():
        densities, recalls = zip(*curve, strict=True)
        assert list(recalls) == sorted(recalls)
        # A row keeps at least one cluster, however large.
        assert all(
            found <= budget + 0.15 for found, budget in zip(densities, BUDGETS, strict=True)
        )
        assert recalls[-1] > densities[-1]  # better than chance


def test_one_token_is_all() -> None:
    one = torch.ones(1, 1, 1, 4)
    assert measure(one, one, None, 0)[CO] == [(1.0, 1.0)] * len(BUDGETS)


def test_recall_between_points_is_on_a_line() -> None:
    assert at_density([(0.5, 0.8)], 0.25) == pytest.approx(0.4)
    assert at_density([(0.5, 0.8)], 0.75) == pytest.approx(0.9)
    assert at_density([(0.5, 0.8), (0.2, 0.6)], 0.2) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("gain", "long", "verdicts"),
    [
        (0.1, 0.0, ["holds", "holds"]),
        (-0.1, 0.0, ["does not hold", "does not hold"]),
        (0.1, 0.2, ["does not hold", "holds"]),  # the paper's claim is about SVG2's own k-means
    ],
)
def test_the_verdict_compares_at_equal_density(
    gain: float, long: float, verdicts: list[str]
) -> None:
    results = studying.empty()
    for number in range(6):
        other = [(density, 0.5 + 0.01 * number) for density in (0.1, 0.2, 0.4, 0.6)]
        own = [(density, value + gain) for density, value in other]
        longer = [(density, value + long) for density, value in other]
        curves = {CO: own, SHORT: other, LONG: longer}
        place = {"prompt": str(number), "tokens": 9, "step": 1}
        rows = [{**place, "layer": layer, "curves": curves} for layer in range(2)]
        results.add("recall", str(number), {"rows": rows})
    section = RecallStudy().show(results)
    assert [claim.verdict for claim in section.claims] == verdicts
    figure = section.claims[0].figure
    assert figure.count("points") == 2
    for against in (long, 0.0):
        more, less = (2, 0) if gain > against else (0, 2)
        assert f"(more in {more}, less in {less}, open in 0 of 2 layers)" in figure
    assert RecallStudy().show(studying.empty()).parts == ()
