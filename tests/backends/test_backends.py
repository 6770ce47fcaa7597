import pytest
import torch
from making import Case, normal

from svoo import backends as backends_module
from svoo import run_plan
from svoo.backends import BACKENDS, resolve
from svoo.errors import BackendUnavailableError, PlanError, ShapeError

CASE = Case(1, 2, 20, 30, 8, 3, 4, seed=0)


class Refusing:
    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason

    def why_not(self, query: torch.Tensor, plan: object) -> str:  # noqa: ARG002 (always refuses)
        return self.reason


def test_auto_takes_the_first_that_can_run() -> None:
    assert resolve("auto", CASE.tokens()[0], CASE.plan(compensate=True)) is BACKENDS[0]
    assert resolve("reference", CASE.tokens()[0], CASE.plan(compensate=True)).name == "reference"


def test_an_unknown_backend_is_refused_with_the_names() -> None:
    with pytest.raises(
        BackendUnavailableError, match="'cudnn'; there are auto, blocked, reference"
    ):
        run_plan(*CASE.tokens(), CASE.plan(compensate=False), backend="cudnn")


def test_when_none_can_run_every_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = (Refusing("one", "needs a moon"), Refusing("two", "needs a star"))
    monkeypatch.setattr(backends_module, "BACKENDS", refusing)
    with pytest.raises(BackendUnavailableError, match="one: needs a moon\n  two: needs a star"):
        run_plan(*CASE.tokens(), CASE.plan(compensate=False))
    with pytest.raises(
        BackendUnavailableError, match="^no backend can run this call\n  two: needs a star$"
    ):
        run_plan(*CASE.tokens(), CASE.plan(compensate=False), backend="two")


def test_a_plan_for_other_tensors_is_refused_with_both_sizes() -> None:
    query, key, value = CASE.tokens()
    plan = CASE.plan(compensate=False)
    with pytest.raises(PlanError, match=r"\[1, 2, 19, 30\], the plan is for \[1, 2, 20, 30\]"):
        run_plan(query[:, :, 1:], key, value, plan)
    with pytest.raises(PlanError, match=r"\[1, 1, 20, 30\]"):
        run_plan(query[:, :1], key[:, :1], value[:, :1], plan)
    with pytest.raises(ShapeError, match="head size"):
        run_plan(query, normal(1, 2, 30, 7), value, plan)
