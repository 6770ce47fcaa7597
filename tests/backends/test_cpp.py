import ctypes
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from making import Case, plan_on

from svoo import BlockPlan, MeanTerms, run_plan
from svoo.errors import BackendUnavailableError
from svoo.kernels.cpp import bindings
from svoo.kernels.cpp.build import COMPILERS, INSTRUCTIONS, compile_library
from svoo.kernels.cpp.clusters import assign, update_centroids

pytestmark = pytest.mark.compiler
RUNS = {"AVX512": ("AVX512", "AVX2"), "AVX2": ("AVX2",)}  # by what a processor has


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("instructions", [*INSTRUCTIONS, "the usual"])
def test_every_instruction_set_and_compiler(
    compiler: str, instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usable = (*RUNS.get(torch.backends.cpu.get_cpu_capability(), ()), "the usual")
    if instructions not in usable or not shutil.which(compiler):
        pytest.skip(f"no {instructions} or no {compiler} here")
    monkeypatch.setenv("CXX", compiler)
    compile_library(tmp_path / "kernels.so", INSTRUCTIONS.get(instructions, ()))
    library = ctypes.CDLL(str(tmp_path / "kernels.so"))
    monkeypatch.setattr(bindings, "load_library", lambda: library)
    for case in Case(1, 2, 333, 222, 32, 4, 7, seed=1), Case(2, 1, 20, 30, 5, 3, 4, seed=2):
        for dtype, slack in (torch.float32, 2e-5), (torch.bfloat16, 3e-2):
            tokens, plan = case.tokens(dtype), case.plan(compensate=True)
            query, key, value = (tensor.double() for tensor in tokens)
            exact = run_plan(query, key, value, plan, backend="reference")
            output = run_plan(*tokens, plan, backend="cpp")
            torch.testing.assert_close(output.double(), exact, atol=slack, rtol=slack)
            labels = assign(tokens[0], tokens[1].float())
            assert torch.equal(labels, (query @ key.mT).argmax(dim=-1))
            means, sizes = update_centroids(tokens[0], labels, torch.zeros(*key.shape))
            sums = torch.zeros_like(key).scatter_add_(
                2, labels.unsqueeze(-1).expand_as(query), query
            )
            torch.testing.assert_close(
                means.double() * sizes.unsqueeze(-1), sums, atol=1e-4, rtol=1e-4
            )


def test_tensors_that_it_does_not_run_are_refused_with_the_reason() -> None:
    case = Case(1, 1, 20, 20, 8, 2, 3, seed=0)
    with pytest.raises(BackendUnavailableError, match="runs float32, bfloat16, got float16"):
        run_plan(*case.tokens(torch.float16), case.plan(compensate=False), backend="cpp")


def test_a_plan_elsewhere_is_refused() -> None:
    case = Case(1, 1, 20, 20, 8, 2, 3, seed=0)
    plan = replace(case.plan(compensate=False), check=False)
    plan = plan_on(torch.device("meta"), plan)
    with pytest.raises(BackendUnavailableError, match="needs a plan on cpu, got one on meta"):
        run_plan(*case.tokens(), plan, backend="cpp")


def test_plans_and_tokens_of_any_layout() -> None:
    case = Case(2, 3, 60, 50, 8, 4, 6, seed=4)
    plan = case.plan(compensate=True)
    tokens = [tensor[:, :1].expand(-1, 3, -1, -1) for tensor in case.tokens()]
    assert plan.query_order is not None and plan.key_order is not None
    assert isinstance(plan.terms, MeanTerms)
    odd = BlockPlan(
        plan.query_order.int(),
        plan.key_order.int(),
        plan.query_sizes.mT.contiguous().mT,
        plan.key_sizes.int(),
        plan.keep.mT.contiguous().mT,
        MeanTerms(plan.terms.compensate.mT.contiguous().mT),
        check=False,
    )
    query, key, value = tokens
    exact = run_plan(query, key, value, plan, backend="reference")
    torch.testing.assert_close(run_plan(query, key, value, odd, backend="cpp"), exact)


def test_another_default_dtype_changes_nothing() -> None:
    case = Case(1, 2, 30, 40, 8, 3, 4, seed=6)
    tokens, plan = case.tokens(), case.plan(compensate=True)
    output, lse = run_plan(*tokens, plan, backend="cpp", return_lse=True)
    assert lse is not None
    torch.set_default_dtype(torch.float64)
    try:
        again = run_plan(*tokens, plan, backend="cpp", return_lse=True)
    finally:
        torch.set_default_dtype(torch.float32)
    assert again.lse is not None
    assert torch.equal(output, again.output) and torch.equal(lse, again.lse)


def test_a_thread_without_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(pointer: Any) -> None:
        pointer._obj.failures += 1

    monkeypatch.setattr(bindings, "load_library", lambda: SimpleNamespace(attend_float32=attend))
    case = Case(1, 1, 20, 20, 8, 2, 3, seed=0)
    with pytest.raises(MemoryError, match="the C\\+\\+ kernel 'attend'"):
        run_plan(*case.tokens(), case.plan(compensate=False), backend="cpp")
