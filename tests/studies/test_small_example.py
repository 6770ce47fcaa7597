import torch

from svoo.core.random import seeded
from svoo.studies.small_example import find_example


def test_four_keys_go_together_in_two_ways() -> None:
    query, key = (
        torch.randn(1, 2, 60, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    found = find_example(query, key, 3, seeded(0))
    assert found.layer == 3 and found.margin > 0.3 and len(set(found.keys)) == 4
    signs = [
        (found.first[place] > 0, found.second[place] > 0) for place in found.keys
    ]  # {k1, k2} and {k3, k4} for the first, {k1, k4} and {k2, k3} for the second
    assert signs == [(True, True), (True, False), (False, False), (False, True)]
    depth = min(abs(side[place]) for side in (found.first, found.second) for place in found.keys)
    assert abs(depth - found.margin) < 2e-3


def test_one_token_has_an_example_without_margin() -> None:
    one = torch.ones(1, 1, 1, 4)
    assert find_example(one, one, 0, seeded(0)).margin == 0
