from pathlib import Path

import pytest
import torch
from making import Case, normal
from torch._subclasses.fake_tensor import FakeTensorMode

from svoo import backends as backends_module
from svoo import run_plan
from svoo.backends import BACKENDS, describe_backends, flashinfer, resolve
from svoo.core import needs
from svoo.errors import (
    BackendUnavailableError,
    PlanError,
    ShapeError,
    SlowBackendError,
)
from svoo.kernels import cpp

CASE = Case(1, 2, 20, 30, 8, 3, 4, seed=0)


class Refusing:
    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason

    def why_not(self, query: torch.Tensor, plan: object) -> str:  # noqa: ARG002 (always refuses)
        return self.reason


def test_auto_takes_the_first_that_can_run() -> None:
    query, plan = CASE.tokens()[0], CASE.plan(compensate=True)
    willing = [backend for backend in BACKENDS if backend.why_not(query, plan) is None]
    assert resolve("auto", query, plan) is willing[0]
    assert resolve("reference", query, plan).name == "reference"


@pytest.mark.parametrize(
    ("chosen", "device", "dtype", "size", "compensate", "capability", "missing"),
    [
        ("cpp", "cpu", torch.bfloat16, 128, True, None, ""),
        ("blocked", "cpu", torch.float16, 128, True, None, ""),
        ("blocked", "cpu", torch.bfloat16, 128, True, None, "c++"),
        ("triton", "cuda", torch.bfloat16, 128, True, (9, 0), ""),
        ("triton", "cuda", torch.bfloat16, 128, False, (9, 0), ""),
        ("triton", "cuda", torch.float32, 80, True, (8, 0), "flashinfer"),
        ("flashinfer", "cuda", torch.bfloat16, 256, False, (9, 0), ""),
        ("dense", "cuda", torch.bfloat16, 256, True, (9, 0), ""),
        ("dense", "cuda", torch.bfloat16, 256, False, (9, 0), "flashinfer"),
        ("flashinfer", "cuda", torch.float16, 64, False, (7, 5), ""),
        ("flashinfer", "cuda", torch.float16, 64, False, (9, 0), "triton"),
        ("dense", "cuda", torch.float16, 64, True, (9, 0), "triton"),
        ("dense", "cuda", torch.float64, 64, True, (9, 0), ""),
    ],
)
def test_the_ladder(
    monkeypatch: pytest.MonkeyPatch,
    chosen: str,
    device: str,
    dtype: torch.dtype,
    size: int,
    compensate: bool,
    capability: tuple[int, int] | None,
    missing: str,
) -> None:
    monkeypatch.setattr(
        needs, "find_version", lambda module, _name: None if module == missing else "0.7.2"
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    monkeypatch.setattr(flashinfer, "why_no_build", lambda: None)
    monkeypatch.setattr(cpp, "why_no_library", lambda: missing if missing == "c++" else None)
    with FakeTensorMode():
        query = torch.empty(1, 2, 20, size, dtype=dtype, device=device)
    plan = CASE.plan(compensate=compensate)
    if chosen == "dense":  # what is left would be slower than dense attention
        with pytest.raises(SlowBackendError, match="no backend is fast on this GPU: triton "):
            resolve("auto", query, plan)
        assert resolve("blocked", query, plan).name == "blocked"
    else:
        assert resolve("auto", query, plan).name == chosen


def test_an_unknown_backend_is_refused_with_the_names() -> None:
    with pytest.raises(
        BackendUnavailableError,
        match="'cudnn'; there are auto, triton, flashinfer, cpp, cpp-bf16, blocked, reference",
    ):
        run_plan(*CASE.tokens(), CASE.plan(compensate=False), backend="cudnn")


def test_when_none_can_run_every_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = (Refusing("one", "needs a moon"), Refusing("two", "needs a star"))
    monkeypatch.setattr(backends_module, "BACKENDS", refusing)
    with pytest.raises(BackendUnavailableError, match="one: needs a moon\n  two: needs a star"):
        run_plan(*CASE.tokens(), CASE.plan(compensate=False))
    with pytest.raises(
        BackendUnavailableError,
        match="^the two backend cannot run this call\n  one: needs a moon\n  two: needs a star$",
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


def test_the_documentation_has_the_needs_as_they_are() -> None:
    text = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
    assert describe_backends() in text


def test_every_backend_says_what_it_needs() -> None:
    for backend in BACKENDS:
        described = backend.needs.describe()
        assert all(described.values()), backend.name
        assert list(described) == list(BACKENDS[0].needs.describe())
