import ctypes
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from making import Case

from svoo import run_plan
from svoo.errors import BackendUnavailableError
from svoo.native import calls
from svoo.native.library import COMPILERS, INSTRUCTIONS, compile_library

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
    monkeypatch.setattr(calls, "load_library", lambda: library)
    for case in Case(1, 2, 333, 222, 32, 4, 7, seed=1), Case(2, 1, 20, 30, 5, 3, 4, seed=2):
        tokens, plan = case.tokens(), case.plan(compensate=True)
        query, key, value = (tensor.double() for tensor in tokens)
        exact = run_plan(query, key, value, plan, backend="reference")
        output = run_plan(*tokens, plan, backend="native")
        torch.testing.assert_close(output.double(), exact, atol=2e-5, rtol=2e-5)


def test_tensors_that_it_does_not_run_are_refused_with_the_reason() -> None:
    case = Case(1, 1, 20, 20, 8, 2, 3, seed=0)
    with pytest.raises(BackendUnavailableError, match="runs float32, bfloat16, got float16"):
        run_plan(*case.tokens(torch.float16), case.plan(compensate=False), backend="native")


def test_another_default_dtype_changes_nothing() -> None:
    case = Case(1, 2, 30, 40, 8, 3, 4, seed=6)
    tokens, plan = case.tokens(), case.plan(compensate=True)
    output, lse = run_plan(*tokens, plan, backend="native", return_lse=True)
    assert lse is not None
    torch.set_default_dtype(torch.float64)
    try:
        again = run_plan(*tokens, plan, backend="native", return_lse=True)
    finally:
        torch.set_default_dtype(torch.float32)
    assert again.lse is not None
    assert torch.equal(output, again.output) and torch.equal(lse, again.lse)


def test_a_thread_without_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(pointer: Any) -> None:
        pointer._obj.failures += 1

    monkeypatch.setattr(calls, "load_library", lambda: SimpleNamespace(attend_float32=attend))
    case = Case(1, 1, 20, 20, 8, 2, 3, seed=0)
    with pytest.raises(MemoryError, match="native kernel 'attend'"):
        run_plan(*case.tokens(), case.plan(compensate=False), backend="native")
