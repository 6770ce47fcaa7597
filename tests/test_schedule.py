import pytest
import torch

from svoo import SVOOConfig
from svoo.errors import ProfileError
from svoo.schedule import Dense, Schedule, Sparse


def test_warm_up_then_sparse() -> None:
    schedule = Schedule(SVOOConfig(dense_steps=0.2, dense_layers=1), steps=10)
    dense = [
        [isinstance(schedule.at(step, layer), Dense) for layer in range(3)] for step in range(10)
    ]
    assert dense[:2] == [[True] * 3] * 2
    assert dense[2:] == [[True, False, False]] * 8
    assert schedule.at(0, 2) == Dense("warm-up: the first 2 of 10 steps are dense")
    assert schedule.at(5, 0) == Dense("the first 1 layers are dense")
    assert schedule.at(5, 1) == Sparse(None)


def test_budgets_are_looked_up_and_clipped() -> None:
    budgets = torch.rand(4, 3, 2, generator=torch.Generator().manual_seed(0))
    config = SVOOConfig(dense_steps=0, dense_layers=0, budget_range=(0.3, 0.6))
    decision = Schedule(config, 4, budgets).at(2, 1)
    assert isinstance(decision, Sparse)
    assert decision.budgets is not None
    assert torch.equal(decision.budgets, budgets[2, 1].clamp(0.3, 0.6))
    beyond = Schedule(config, 4, budgets).at(7, 1)  # a scheduler that runs on after its last step
    assert isinstance(beyond, Sparse)
    assert beyond.budgets is not None
    assert torch.equal(beyond.budgets, budgets[3, 1].clamp(0.3, 0.6))


def test_budgets_for_another_number_of_steps_are_refused() -> None:
    with pytest.raises(
        ProfileError, match=r"with 30 steps, got \[50, 3, 2\]; use Profile.at_sigmas"
    ):
        Schedule(SVOOConfig(), 30, torch.zeros(50, 3, 2))
