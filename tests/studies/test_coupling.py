import pytest
import studying
import torch

from svoo.core.random import seeded
from svoo.studies.coupling import CouplingStudy, shared_information


def test_keys_are_grouped_by_who_asks() -> None:
    """Two groups of queries that look at different axes of the keys."""
    chance = torch.Generator().manual_seed(0)
    key = torch.randn(1, 2, 3000, 8, generator=chance)
    query = 0.1 * torch.randn(1, 2, 3000, 8, generator=chance)
    query[:, :, :1500, :2] += 3 * torch.randn(1, 2, 1500, 2, generator=chance)
    query[:, :, 1500:, 2:4] += 3 * torch.randn(1, 2, 1500, 2, generator=chance)
    query[:, :, :1500, 7] += 20  # what tells the groups apart
    key[..., 7] = 0
    within, across = shared_information(query, key, seeded(0))
    assert within > across + 0.1
    same = torch.randn(1, 2, 3000, 8, generator=chance)
    within, across = shared_information(same, key, seeded(0))
    assert within == pytest.approx(across, abs=0.1)


@pytest.mark.parametrize("tokens", [1, 5])
def test_few_tokens_do(tokens: int) -> None:
    few = torch.ones(1, 1, tokens, 4)
    assert shared_information(few, few, seeded(0)) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("gap", "verdict"), [(0.2, "holds"), (0.0, "cannot be told here"), (-0.2, "does not hold")]
)
def test_the_verdict_follows_the_gap(gap: float, verdict: str) -> None:
    results = studying.empty()
    for number in range(6):
        noise = 0.01 * (-1) ** number
        row = {"prompt": str(number), "tokens": 9, "step": 1, "example": None}
        row |= {"within": [0.6, 0.5], "across": [0.6 - gap + noise, 0.5 - gap + noise]}
        results.add("coupling", str(number), row)
    section = CouplingStudy().show(results)
    assert section.claims[0].verdict == verdict
    assert CouplingStudy().show(studying.empty()).parts == ()
