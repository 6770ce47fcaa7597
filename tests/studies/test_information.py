import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from svoo.studies.information import mutual_information


def by_definition(first: list[int], second: list[int]) -> float:
    total = len(first)

    def entropy(labels: list[object]) -> float:
        return -sum(n / total * math.log(n / total) for n in Counter(labels).values())

    one, other = entropy(list(first)), entropy(list(second))
    shared = one + other - entropy(list(zip(first, second, strict=True)))
    return 1.0 if one + other == 0 else shared / ((one + other) / 2)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=60),
)
def test_it_is_the_definition(pairs: list[tuple[int, int]]) -> None:
    first, second = (list(side) for side in zip(*pairs, strict=True))
    found = mutual_information(torch.tensor([first, first]), torch.tensor([second, first]))
    assert float(found[0]) == pytest.approx(by_definition(first, second), abs=1e-9)
    assert float(found[1]) == pytest.approx(1.0)
    assert found.shape == (2,)


def test_names_of_blocks_do_not_matter_and_chance_shares_nothing() -> None:
    labels = torch.randint(4, (1, 2, 4000), generator=torch.Generator().manual_seed(0))
    assert mutual_information(labels, 3 - labels)[0].tolist() == pytest.approx([1.0, 1.0])
    other = torch.randint(4, (1, 2, 4000), generator=torch.Generator().manual_seed(1))
    assert float(mutual_information(labels.short(), other).max()) < 0.01
