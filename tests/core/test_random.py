import pytest
import torch

from svoo.core.random import mix_seeds, sample_rows, seeded
from svoo.errors import ShapeError

CPU = torch.device("cpu")


def test_sampled_rows() -> None:
    assert sample_rows(10, None, None, CPU) is None
    assert sample_rows(10, 10, None, CPU) is None
    drawn = sample_rows(10, 4, seeded(3), CPU)
    assert drawn is not None
    assert len(set(drawn.tolist())) == 4 and 0 <= min(drawn) <= max(drawn) < 10
    for bad in (0, 11):
        with pytest.raises(ShapeError, match="rows must be between 1 and the 10"):
            sample_rows(10, bad, None, CPU)


def test_the_global_generator_is_never_touched() -> None:
    before = torch.get_rng_state()
    torch.rand(3, generator=seeded(5))
    assert torch.equal(before, torch.get_rng_state())


def test_different_numbers_give_different_seeds() -> None:
    seeds = {mix_seeds(*numbers) for numbers in ((0,), (0, 0), (0, 1), (1, 0), (1,), (2**63, 5))}
    assert len(seeds) == 6 and all(0 <= seed < 2**63 for seed in seeds)
