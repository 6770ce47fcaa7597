import math

import pytest
import studying
import torch

from svoo.core.density import logit_variance
from svoo.core.random import seeded
from svoo.studies.theorem import DELTA, TheoremRow, TheoremStudy, bound, deviations, slope


def test_independent_tokens_deviate_by_one_over_the_square_root() -> None:
    query, key = (
        torch.randn(1, 4, 8192, 16, generator=torch.Generator().manual_seed(s)) for s in (0, 1)
    )
    variance, tokens, found, bounds = deviations(query, key, None, seeded(0))
    assert variance == pytest.approx(logit_variance(query, key)[0].tolist(), rel=1e-6)
    assert tokens[0] == 16 and tokens[-1] == 2048
    row = TheoremRow("p", 0, 8192, variance, tokens, found, bounds)
    assert slope(row) == pytest.approx(-0.5, abs=0.2)
    assert all(off < limit for off, limit in zip(found, bounds, strict=True))


def test_the_bound_is_the_formula() -> None:
    query, key = torch.ones(1, 1, 3, 4), 2 * torch.ones(1, 1, 3, 4)
    log = math.log(4 / DELTA) / 100
    expected = 4 * 0.25 * (4 * 16) * (math.sqrt(log) + log)  # D scale^2 |q|^2 |k|^2
    assert bound(query, key, None, 100) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("power", "limit", "verdict"),
    [
        (-0.5, 10.0, "holds"),
        (-0.8, 10.0, "holds"),
        (-0.4, 10.0, "does not hold"),
        (-0.5, 1e-3, "does not hold"),
    ],
)
def test_the_verdict_needs_the_rate_and_the_bound(
    power: float, limit: float, verdict: str
) -> None:
    results = studying.empty()
    tokens = [32, 64, 128, 256]
    for number in range(6):
        off = [float(n) ** power for n in tokens]
        fast = [float(n) ** -0.9 for n in tokens]
        variance = [1.0, 2.0 + 0.1 * number]
        rows = [
            TheoremRow(str(number), layer, 999, variance, tokens, deviation, [limit] * 4)
            for layer, deviation in enumerate((off, fast))
        ]
        results.add("theorem", str(number), {"rows": [vars(row) for row in rows]})
    claim, _ = TheoremStudy().show(results).claims
    assert claim.verdict == verdict
    assert f"slowest layer, 0, it falls as n to the power {power:.2f}" in claim.figure
    assert "in the fastest as -0.90" in claim.figure
    assert TheoremStudy().show(studying.empty()).parts == ()


@pytest.mark.parametrize(
    ("apart", "verdict"), [(0.0, "holds"), (5.0, "does not hold"), (0.1, "cannot be told here")]
)
def test_inputs_are_judged_by_what_samples_of_one_do(apart: float, verdict: str) -> None:
    """Two layers: in one of them, or in both, inputs differ by more than samples."""
    results = studying.empty()
    for number in range(6):
        rows = [
            TheoremRow(
                str(number), layer, 999, [1.0 + far * number], [32, 64], [0.4, 0.05], [9, 9]
            )
            for layer, far in enumerate((apart, apart if apart > 1 else 0.0))
        ]
        results.add("theorem", str(number), {"rows": [vars(row) for row in rows]})
    _, claim = TheoremStudy().show(results).claims
    assert claim.verdict == verdict


def test_draws_without_return_deviate_as_from_many_more_tokens() -> None:
    query, key = (
        torch.randn(1, 4, 512, 16, generator=torch.Generator().manual_seed(s)) for s in (0, 1)
    )
    _, tokens, few, _ = deviations(query, key, None, seeded(0))
    many = [side.repeat(1, 1, 16, 1) for side in (query, key)]
    _, more, found, _ = deviations(many[0], many[1], None, seeded(0))
    assert tokens == more[: len(tokens)]
    assert few[-1] == pytest.approx(found[len(tokens) - 1], rel=0.35)
