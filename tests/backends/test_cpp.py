import ctypes
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from making import Case, cases, map_tensors, plan_on

from svoo import BlockPlan, MeanTerms, run_plan
from svoo.backends import cpp
from svoo.backends.base import Workspace
from svoo.errors import BackendUnavailableError
from svoo.kernels import cpp as kernels
from svoo.kernels.cpp import bindings
from svoo.kernels.cpp.build import (
    COMPILERS,
    INSTRUCTIONS,
    compile_library,
    find_flags,
    load_library,
)
from svoo.kernels.cpp.clusters import assign, update_centroids

pytestmark = pytest.mark.compiler
RUNS = {"AVX512": ("AVX512", "AVX2"), "AVX2": ("AVX2",)}  # by what a processor has


def load(path: Path, *flags: str) -> ctypes.CDLL:
    compile_library(path, flags)
    return ctypes.CDLL(str(path))


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library with bfloat16 products, by emulation where the processor has none."""
    path = tmp_path_factory.mktemp("emulated") / "kernels.so"
    return load(path, *find_flags(), "-DEMULATE_BFLOAT16_PRODUCTS")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@settings(max_examples=60)
@given(
    case=cases(max_tokens=90, sizes=(1, 5, 32, 40, 64)),
    groups=st.sampled_from((0, 1, 3)),
    ordered=st.booleans(),
)
def test_far_terms(dtype: torch.dtype, case: Case, groups: int, ordered: bool) -> None:
    slack = 2e-5 if dtype == torch.float32 else 3e-2
    plan = case.far_plan(groups=groups, ordered=ordered, dtype=dtype)
    tokens = case.tokens(dtype)
    exact = run_plan(*tokens, plan, backend="reference", return_lse=True)
    output, lse = run_plan(*tokens, plan, backend="cpp", return_lse=True)
    assert lse is not None and exact.lse is not None
    torch.testing.assert_close(output, exact.output, atol=slack, rtol=slack)
    torch.testing.assert_close(lse, exact.lse, atol=slack, rtol=slack)


@pytest.mark.parametrize("size", [32, 64, 80, 128, 130, 256])
@pytest.mark.parametrize("blocks", [1, 9, 60])
def test_every_head_size_and_query_blocks_of_every_size(size: int, blocks: int) -> None:
    case = Case(1, 2, 500, 400, size, blocks, 20, seed=size)
    tokens, plan = case.tokens(), case.plan(compensate=True)
    query, key, value = (tensor.double() for tensor in tokens)
    exact = run_plan(query, key, value, plan, backend="reference")
    output = run_plan(*tokens, plan, backend="cpp")
    torch.testing.assert_close(output.double(), exact, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(("size", "dtype", "rows"), [
    (64, torch.float32, 0), (40, torch.float32, 50), (64, torch.bfloat16, 50)
])  # fmt: skip
@pytest.mark.parametrize("ordered", [True, False])
def test_float32_rows_that_need_no_filling_up_are_read_where_they_are(
    size: int, dtype: torch.dtype, rows: int, ordered: bool
) -> None:
    case = Case(2, 3, 60, 50, size, 4, 6, seed=5)
    plan = case.far_plan(groups=2, ordered=ordered, dtype=dtype)
    # As diffusers hands them over: the heads of a token side by side.
    query, key, value = (
        side.transpose(1, 2).contiguous().transpose(1, 2) for side in case.tokens(dtype)
    )
    workspace = Workspace()
    run = cpp.CppBackend().run(
        query, key, value, plan, scale=size**-0.5, return_lse=False, workspace=workspace
    )
    exact = run_plan(query, key, value, plan, backend="reference")
    slack = 2e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(run.output, exact, atol=slack, rtol=slack)
    held = workspace.take("cpp")
    assert isinstance(held, torch.Tensor)
    assert held.numel() == 2 * 6 * (rows + 6) * bindings.padded_size(size)  # and the blocks' means


def test_heads_go_in_groups_of_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(2, 3, 60, 50, 8, 4, 6, seed=4)
    tokens, plan = case.tokens(), case.far_plan(groups=2)
    at_once = run_plan(*tokens, plan, backend="cpp")
    ran: list[bindings.Attention] = []
    run_kernel = bindings.run_kernel

    def watch(name: str, dtype: torch.dtype, call: bindings.Attention) -> None:
        ran.append(call)
        run_kernel(name, dtype, call)

    monkeypatch.setattr(bindings, "run_kernel", watch)
    monkeypatch.setattr(cpp, "PACKED_BYTES", 4 * (50 + 6) * 32 * 8)
    assert torch.equal(run_plan(*tokens, plan, backend="cpp"), at_once)
    assert [(call.first_pair, call.pairs) for call in ran[::2]] == [(0, 4), (4, 2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(case=cases(max_tokens=150, sizes=(1, 5, 32, 40)))
def test_bfloat16_products(
    dtype: torch.dtype, case: Case, emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded queries, keys, values, and weights that are rounded too."""
    monkeypatch.setattr(bindings, "load_library", lambda: emulated)
    monkeypatch.setattr(cpp, "why_no_bfloat16_products", lambda: None)
    plan = case.far_plan(groups=2, dtype=dtype)
    tokens = case.tokens(dtype)
    query, key, value = (tensor.bfloat16() for tensor in tokens)
    rounded = map_tensors(plan, lambda part: part.bfloat16() if part.ndim == 5 else part)
    exact = run_plan(query, key, value, rounded, backend="reference").double()
    output = run_plan(*tokens, plan, backend="cpp-bf16").double()
    # Both outputs and all weights are rounded: each by up to 2^-9 of itself.
    most = max(float(value.abs().max()), float(exact.abs().max()))
    assert float((output - exact).abs().max()) < 4 * 2.0**-9 * most


def test_float32_tokens_are_never_rounded_by_themselves(
    emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bindings, "load_library", lambda: emulated)
    monkeypatch.setattr(cpp, "why_no_bfloat16_products", lambda: None)
    case = Case(1, 2, 100, 80, 32, 4, 6, seed=3)
    tokens, plan = case.tokens(), case.plan(compensate=True)
    query, key, value = (tensor.double() for tensor in tokens)
    exact = run_plan(query, key, value, plan, backend="reference")
    torch.testing.assert_close(
        run_plan(*tokens, plan, backend="cpp").double(), exact, rtol=2e-5, atol=2e-5
    )
    rounded = run_plan(*tokens, plan, backend="cpp-bf16")
    assert 1e-4 < float((rounded - exact).abs().max()) < 0.1


def test_bfloat16_products_need_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        kernels, "load_library", lambda: SimpleNamespace(has_bfloat16_products=int)
    )
    case = Case(1, 1, 20, 20, 8, 2, 3, seed=0)
    with pytest.raises(BackendUnavailableError, match="needs a processor with AVX512_BF16"):
        run_plan(*case.tokens(), case.plan(compensate=False), backend="cpp-bf16")


def test_powers_of_two_are_as_exact_as_the_source_says() -> None:
    """Every float of [-0.5, 0.5) that ends in two zero bytes or a few odd ones, and wide ones."""
    near = torch.arange(-(2**23), 2**23, 7, dtype=torch.float64) / 2**24
    x = torch.cat((near, torch.linspace(-126, 127, 1 << 16).double())).float()
    x = x[: len(x) // 16 * 16].contiguous()
    exact = x.double().exp2()
    load_library().powers_of_two(ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(len(x) // 16))
    assert float((x.double() / exact - 1).abs().max()) < 2.2e-7
    low = torch.full((16,), -1000.0)
    load_library().powers_of_two(ctypes.c_void_p(low.data_ptr()), ctypes.c_int64(1))
    assert torch.equal(low, torch.full((16,), 2.0**-126))


def test_logarithms_are_as_exact_as_the_source_says() -> None:
    near = 1 + torch.arange(1 << 18, dtype=torch.float64) / 2**18
    x = torch.cat((near, torch.logspace(0, 24, 1 << 16, base=2).double())).float().contiguous()
    exact = x.double().log2()
    load_library().logarithms(ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(len(x) // 16))
    assert float(((x.double() - exact) / exact.clamp(min=1)).abs().max()) < 3e-7


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("instructions", [*INSTRUCTIONS, "the usual"])
def test_every_instruction_set_and_compiler(
    compiler: str, instructions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usable = (*RUNS.get(torch.backends.cpu.get_cpu_capability(), ()), "the usual")
    if instructions not in usable or not shutil.which(compiler):
        pytest.skip(f"no {instructions} or no {compiler} here")
    monkeypatch.setenv("CXX", compiler)
    library = load(tmp_path / "kernels.so", *INSTRUCTIONS.get(instructions, ()))
    monkeypatch.setattr(bindings, "load_library", lambda: library)
    for case in Case(1, 2, 333, 222, 32, 4, 7, seed=1), Case(2, 1, 20, 30, 5, 3, 4, seed=2):
        for dtype, slack in (torch.float32, 2e-5), (torch.bfloat16, 3e-2):
            tokens, plan = case.tokens(dtype), case.plan(compensate=True)
            query, key, value = (tensor.double() for tensor in tokens)
            exact = run_plan(query, key, value, plan, backend="reference")
            output = run_plan(*tokens, plan, backend="cpp")
            torch.testing.assert_close(output.double(), exact, atol=slack, rtol=slack)
            far = case.far_plan(groups=2, dtype=dtype)
            exact = run_plan(*tokens, far, backend="reference").double()
            output = run_plan(*tokens, far, backend="cpp")
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

    library = SimpleNamespace(
        pack_float32=attend, run_together=lambda kernel, call, _threads: kernel(call)
    )
    monkeypatch.setattr(bindings, "load_library", lambda: library)
    case = Case(1, 1, 20, 20, 8, 2, 3, seed=0)
    with pytest.raises(MemoryError, match="the C\\+\\+ kernel 'pack'"):
        run_plan(*case.tokens(), case.plan(compensate=False), backend="cpp")
