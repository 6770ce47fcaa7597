import pytest
import studying
import torch

from svoo.core.random import seeded
from svoo.studies.coupling import CouplingStudy, compare_partitions


def test_keys_are_grouped_by_who_asks() -> None:
    """Two groups of queries that look at different axes of the keys."""
    chance = torch.Generator().manual_seed(0)
    key = torch.randn(1, 2, 3000, 8, generator=chance)
    query = 0.1 * torch.randn(1, 2, 3000, 8, generator=chance)
    query[:, :, :1500, :2] += 3 * torch.randn(1, 2, 1500, 2, generator=chance)
    query[:, :, 1500:, 2:4] += 3 * torch.randn(1, 2, 1500, 2, generator=chance)
    query[:, :, :1500, 7] += 20  # what tells the groups apart
    key[..., 7] = 0
    found = compare_partitions(query, key, None, seeded(0))
    assert found.within > found.across + 0.1
    assert found.recall_within > found.recall_across + 0.02
    same = torch.randn(1, 2, 3000, 8, generator=chance)
    found = compare_partitions(same, key, None, seeded(0))
    assert found.within == pytest.approx(found.across, abs=0.1)
    assert found.recall_within == pytest.approx(found.recall_across, abs=0.02)


@pytest.mark.parametrize("tokens", [1, 5])
def test_few_tokens_do(tokens: int) -> None:
    few = torch.ones(1, 1, tokens, 4)
    found = compare_partitions(few, few, None, seeded(0))
    assert (found.within, found.across) == (1.0, 1.0)
    assert found.recall_within == found.recall_across > 0


@pytest.mark.parametrize(
    ("gap", "verdict"), [(0.2, "holds"), (0.0, "cannot be told here"), (-0.2, "does not hold")]
)
def test_the_verdict_follows_the_gap(gap: float, verdict: str) -> None:
    results = studying.empty()
    for number in range(6):
        noise = 0.01 * (-1) ** number
        row = {"prompt": str(number), "tokens": 9, "step": 1, "example": None}
        row |= {"within": [0.6, 0.5], "across": [0.4, 0.3], "recall_within": [0.6, 0.5]}
        row |= {"recall_across": [0.6 - gap + noise, 0.5 - gap + noise]}
        results.add("coupling", str(number), row)
    results.add("coupling", "of an older rule", {"prompt": "6", "within": [1.0], "across": [0.0]})
    section = CouplingStudy().show(results)
    assert section.claims[0].verdict == verdict
    assert f"more in {2 if gap > 0 else 0} of 2 layers" in section.claims[0].figure
    assert "+0.200 (+0.200 to +0.200, 6 prompts) higher" in section.claims[0].figure
    assert CouplingStudy().show(studying.empty()).parts == ()
