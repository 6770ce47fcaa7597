import pytest
import torch
from making import normal

from svoo.core.block_sums import probability_sums
from svoo.errors import BackendUnavailableError


def test_sums_are_those_of_all_probabilities() -> None:
    query, key = normal(1, 2, 3000, 4), normal(1, 2, 2500, 4, seed=1)
    sums = probability_sums(query, key, 64, 0.5, implementation="torch")
    assert sums.shape == (1, 2, 47, 40)
    torch.testing.assert_close(sums.sum(dim=(2, 3)), torch.full((1, 2), 3000.0))
    weights = (query[:, :, 64:128] @ key.mT * 0.5).softmax(dim=-1)
    torch.testing.assert_close(sums[0, :, 1, -1], weights[0, ..., 39 * 64 :].sum(dim=(1, 2)))


def test_float64_is_summed_in_float64_and_cpp_says_that_it_cannot() -> None:
    query, key = (normal(1, 1, 30, 4, seed=s, dtype=torch.float64) for s in (0, 1))
    assert probability_sums(query, key, 8, 0.5).dtype == torch.float64
    with pytest.raises(BackendUnavailableError, match="cpp: "):
        probability_sums(query, key, 8, 0.5, implementation="cpp")
