import pytest
import torch

from svoo import SVOOConfig
from svoo.errors import ProfileError
from svoo.methods.schedule import Dense, Schedule, Sparse


def test_warm_up_then_sparse() -> None:
    schedule = Schedule(SVOOConfig(dense_steps=0.2, dense_layers=1), steps=10)
    dense = [
        [isinstance(schedule.at(step, layer), Dense) for layer in range(3)] for step in range(10)
    ]
    assert dense[:2] == [[True] * 3] * 2
    assert dense[2:] == [[True, False, False]] * 8
    assert schedule.at(0, 2) == Dense("warm-up: the first 2 of 10 steps are dense")
    assert schedule.at(5, 0) == Dense("the first 1 layers are dense")
    assert schedule.at(5, 1) == Sparse(None, schedule.config.mass)


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


def test_a_ramp_falls_from_dense_to_the_settings() -> None:
    config = SVOOConfig(mass=0.6, dense_steps=2, ramp=0.3, dense_layers=0)
    schedule = Schedule(config, 10, torch.full((10, 1, 2), 0.2))
    found = []
    for step in range(2, 10):
        decision = schedule.at(step, 0)
        assert isinstance(decision, Sparse) and decision.budgets is not None
        found.append((decision.mass, float(decision.budgets[0])))
    parts = [0.75, 0.5, 0.25, 0, 0, 0, 0, 0]
    expected = [(0.6 + 0.4 * part, 0.2 + 0.8 * part) for part in parts]
    assert found == [pytest.approx(pair) for pair in expected]
    without = Schedule(SVOOConfig(mass=0.6, dense_steps=0), 10).at(0, 5)
    assert without == Sparse(None, 0.6)
