import torch
from making import normal

from svoo import Call, Dense, Run, SVOOConfig
from svoo.methods.svoo.budgets import MeasuredBudgets, NoBudgets, find_budgets

CONFIG = SVOOConfig(mass=0.7, dense_steps=2, dense_layers=1)
QUERY, KEY = normal(1, 2, 30, 8), normal(1, 2, 30, 8, seed=1)
WARM = Dense("warm-up", planned=True)


def test_a_layer_is_measured_in_its_last_dense_step() -> None:
    budgets = MeasuredBudgets(CONFIG, Run(steps=5))
    assert budgets.before(QUERY, KEY, Call(0, 1), WARM) is WARM
    assert budgets.at(Call(0, 1), 2) is None
    assert budgets.before(QUERY, KEY, Call(1, 1), WARM) is WARM
    found = budgets.at(Call(1, 1), 2)
    assert found is not None and bool(((found > 0) & (found <= 1)).all())
    assert budgets.before(QUERY, KEY, Call(2, 1), None) is None
    assert budgets.before(QUERY, KEY, Call(1, 0), WARM) is WARM  # a dense layer needs none
    assert budgets.at(Call(1, 0), 2) is None


def test_a_layer_without_a_dense_step_gets_one() -> None:
    budgets = MeasuredBudgets(CONFIG, Run(steps=5, stages=2))
    first = budgets.before(QUERY, KEY, Call(3, 1, stage=1), None)
    assert first == Dense(
        "the first step of this expert is dense to measure its budgets", planned=True
    )
    other_branch = budgets.before(QUERY, KEY, Call(3, 1, stage=1, branch="uncond"), None)
    assert other_branch == first
    assert budgets.before(QUERY, KEY, Call(4, 1, stage=1), None) is None
    skipped = budgets.before(QUERY, KEY, Call(4, 2, stage=1), None)
    assert skipped is not None and skipped.reason.startswith("skipped in the warm-up")


def test_where_budgets_come_from() -> None:
    notes: list[str] = []
    run = Run(steps=5, calibrate=True, note=notes.append)
    assert isinstance(find_budgets(CONFIG, run), MeasuredBudgets)
    assert isinstance(find_budgets(SVOOConfig(mass=0.7), run), NoBudgets)
    assert isinstance(find_budgets(SVOOConfig(dense_steps=2), run), NoBudgets)
    assert notes == ["no dense step to measure budgets in: mass alone decides"]
    assert isinstance(find_budgets(CONFIG, Run(steps=5)), NoBudgets)
    assert NoBudgets().before(QUERY, KEY, Call(0, 0), WARM) is WARM
    assert not torch.is_grad_enabled() or NoBudgets().at(Call(0, 0), 2) is None
