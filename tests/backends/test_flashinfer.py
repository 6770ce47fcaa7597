import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from making import Case, cases, map_tensors, plan_on
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import cpp_extension

from svoo import BlockPlan, run_plan
from svoo.backends import Workspace
from svoo.backends import flashinfer as backend_module
from svoo.backends.flashinfer import FlashInferBackend, _drop_empty
from svoo.core import needs


class Wrapper:
    """FlashInfer's variable-block wrapper as it is documented, on any device and slow.

    Every argument is checked; what the documentation leaves open (a block without tokens) is
    refused.
    """

    plans = 0

    def __init__(self, float_workspace_buffer: Tensor, backend: str = "auto") -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert float_workspace_buffer.numel() == 128 * 1024 * 1024
        assert backend == "auto"
        self.device = float_workspace_buffer.device

    def plan(
        self,
        block_mask_map: Tensor,
        block_row_sz: Tensor,
        block_col_sz: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
    ) -> None:
        heads, rows, columns = block_mask_map.shape
        assert block_mask_map.dtype == torch.bool
        assert block_row_sz.shape == (heads, rows)
        assert block_col_sz.shape == (heads, columns)
        for tensor in (block_mask_map, block_row_sz, block_col_sz):
            assert tensor.device == self.device
        for sizes in (block_row_sz, block_col_sz):
            assert sizes.dtype == torch.int32
            assert bool((sizes > 0).all())
        assert num_qo_heads == num_kv_heads == heads
        assert not causal and not use_fp16_qk_reduction and non_blocking
        assert pos_encoding_mode == "NONE"
        assert logits_soft_cap is rope_scale is rope_theta is None
        assert isinstance(sm_scale, float)
        assert q_data_type == kv_data_type
        self.head_dim, self.scale, self.dtype = head_dim, sm_scale, q_data_type
        self.keep, self.rows, self.columns = block_mask_map, block_row_sz, block_col_sz
        Wrapper.plans += 1

    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        assert out is None and lse is None and enable_pdl is None
        heads = len(self.keep)
        assert q.shape == (heads, int(self.rows[0].sum()), self.head_dim)
        assert k.shape == v.shape == (heads, int(self.columns[0].sum()), self.head_dim)
        for tokens in (q, k, v):
            assert tokens.dtype == self.dtype
            assert tokens.device == self.device
        logits = q.float() @ k.float().transpose(1, 2) * self.scale
        for head in range(heads):
            mask = self.keep[head].repeat_interleave(self.rows[head].long(), dim=0)
            mask = mask.repeat_interleave(self.columns[head].long(), dim=1)
            logits[head].masked_fill_(~mask, -torch.inf)
        output = (logits.softmax(dim=-1) @ v.float()).to(q.dtype)
        binary = logits.logsumexp(dim=-1) / math.log(2)
        return (output, binary) if return_lse else output


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> type[Wrapper]:
    module = ModuleType("flashinfer")
    module.VariableBlockSparseAttentionWrapper = Wrapper  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    Wrapper.plans = 0
    return Wrapper


def assert_is_the_reference(
    tokens: tuple[Tensor, Tensor, Tensor],
    plan: BlockPlan,
    tolerance: float,
    exact: BlockPlan | None = None,
) -> None:
    query, key, value = (tensor.double() for tensor in tokens)
    found = run_plan(
        query, key, value, exact or plan, backend="reference", scale=0.2, return_lse=True
    )
    backend = FlashInferBackend()
    workspace = Workspace()
    got = backend.run(*tokens, plan, scale=0.2, return_lse=True, workspace=workspace)
    assert workspace.nbytes == 128 << 20
    assert got.output.dtype == tokens[0].dtype
    assert got.lse is not None and found.lse is not None
    for one, other in ((got.output, found.output), (got.lse, found.lse)):
        torch.testing.assert_close(one.double(), other, atol=tolerance, rtol=tolerance)
    again = backend.run(*tokens, plan, scale=0.2, return_lse=False, workspace=workspace)
    assert again.lse is None and torch.equal(again.output, got.output)


@pytest.mark.usefixtures("stub")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(sizes=(64,)), ordered=st.booleans())
def test_every_plan_reaches_it_in_the_documented_form(case: Case, ordered: bool) -> None:
    plan = case.plan(compensate=False, ordered=ordered)
    assert_is_the_reference(case.tokens(torch.bfloat16), plan, 3e-2)
    assert_is_the_reference(case.tokens(torch.float16), plan, 4e-3)


@pytest.mark.usefixtures("stub")
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(max_tokens=25, sizes=(64,)))
def test_compensation_is_merged_in(case: Case) -> None:
    if torch.cuda.is_available():
        pytest.skip("the stub's half runs on the CPU, Triton's cannot there")
    assert_is_the_reference(case.tokens(torch.float16), case.plan(compensate=True), 4e-3)


def test_heads_are_planned_in_parts(stub: type[Wrapper], monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(2, 3, 30, 40, 64, 3, 4, seed=1)
    plan = case.plan(compensate=False)
    assert_is_the_reference(case.tokens(torch.bfloat16), plan, 3e-2)
    assert stub.plans == 2  # once a run
    monkeypatch.setattr(backend_module, "_LONGEST_LIST", 1)  # every head is too long
    assert_is_the_reference(case.tokens(torch.bfloat16), plan, 3e-2)
    assert stub.plans == 2 + 2 * 6


def test_a_part_has_no_more_rows_than_its_buffer(
    stub: type[Wrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(2, 3, 30, 40, 64, 1, 4, seed=1)  # one query block in each of six heads
    monkeypatch.setattr(backend_module, "_MOST_ROWS", 4)
    assert_is_the_reference(case.tokens(torch.bfloat16), case.plan(compensate=False), 3e-2)
    assert stub.plans == 2 * 2  # four heads, then two, in each of two runs
    assert backend_module.__dict__["_LONGEST_LIST"] > backend_module._MOST_ROWS


def test_it_plans_on_the_device_of_the_tokens(
    stub: type[Wrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `plan` synchronises the current device, which may be another than the tokens'."""
    current: list[object] = []

    @contextmanager
    def device_of(tensor: Tensor) -> Iterator[None]:
        current.append(tensor.device)
        yield
        current.pop()

    def watched(self: Wrapper, *given: object, **named: object) -> None:
        assert current == [torch.device("cpu")]
        plan_of_stub(self, *given, **named)

    plan_of_stub: Any = stub.plan
    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(stub, "plan", watched)
    case = Case(1, 2, 30, 40, 64, 3, 4, seed=1)
    assert_is_the_reference(case.tokens(torch.bfloat16), case.plan(compensate=False), 3e-2)
    assert stub.plans == 2 and not current


@pytest.mark.usefixtures("stub")
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(max_tokens=25, sizes=(64,)))
def test_far_terms_come_from_our_kernel_where_it_runs(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available():
        pytest.skip("the stub's half runs on the CPU, Triton's cannot there")
    monkeypatch.setattr(backend_module, "why_no_kernels", lambda _tokens: None)
    monkeypatch.setattr(backend_module, "_far_part", None)
    tokens = case.tokens(torch.float16)
    plan = case.far_plan(groups=2, dtype=torch.float16)
    wide = map_tensors(plan.terms, lambda part: part.double() if part.ndim == 5 else part)
    query, key, value = (tensor.double() for tensor in tokens)
    widened = replace(plan, terms=wide)
    exact = run_plan(query, key, value, widened, backend="reference", scale=0.2)
    backend = FlashInferBackend()
    got = backend.run(*tokens, plan, scale=0.2, return_lse=False, workspace=Workspace())
    torch.testing.assert_close(got.output.double(), exact, atol=4e-3, rtol=4e-3)


@given(case=cases())
def test_blocks_without_tokens_go_and_the_others_stay(case: Case) -> None:
    sizes = case.plan(compensate=False).key_sizes.flatten(0, 1)
    got, source = _drop_empty(sizes, case.keys)
    assert bool((got > 0).all())
    assert got.shape[1] == int((sizes > 0).sum(dim=-1).max())
    restored = torch.zeros_like(sizes).scatter_add_(1, source, got)
    assert torch.equal(restored, sizes)
    assert bool((source.diff(dim=-1) >= 0).all())


def test_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(1, 1, 8, 8, 64, 2, 2, seed=0)
    query, plan = case.tokens(torch.bfloat16)[0], case.plan(compensate=False)
    backend = FlashInferBackend()

    assert backend.why_not(query, plan) == "needs a CUDA tensor, got cpu"
    with FakeTensorMode():
        query = torch.empty(query.shape, dtype=query.dtype, device="cuda")
    expected = {
        None: "needs flashinfer, which is not installed: pip install flashinfer-python",
        "0.5.3": "needs flashinfer-python 0.6 or 0.7, got 0.5.3",
        "": "needs flashinfer-python 0.6 or 0.7, got an unknown version",
        "0.7.2.post1": None,
    }
    monkeypatch.setattr(backend_module, "why_no_build", lambda: None)
    for version, reason in expected.items():
        monkeypatch.setattr(needs, "find_version", lambda *_names, found=version: found)
        assert backend.why_not(query, plan) == reason
    monkeypatch.undo()


def test_it_says_that_it_builds_with_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    backend_module.why_no_build.cache_clear()
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    assert "with nvcc at first use" in (backend_module.why_no_build() or "")
    backend_module.why_no_build.cache_clear()
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", "here")
    assert backend_module.why_no_build() is None
    backend_module.why_no_build.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("compensate", [False, True])
def test_the_real_one(compensate: bool) -> None:
    pytest.importorskip("flashinfer")
    case = Case(2, 3, 700, 900, 128, 7, 20, seed=3)
    plan = case.plan(compensate=compensate)
    exact = run_plan(*case.tokens(torch.float32), plan, backend="reference")
    query, key, value = (tokens.cuda() for tokens in case.tokens(torch.bfloat16))
    got = (
        run_plan(query, key, value, plan_on(query.device, plan), backend="flashinfer")
        .float()
        .cpu()
    )
    torch.testing.assert_close(got, exact, atol=3e-2, rtol=3e-2)


@pytest.mark.usefixtures("stub")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(sizes=(64,)), ordered=st.booleans(), groups=st.integers(0, 3))
def test_far_terms_are_merged_in(case: Case, ordered: bool, groups: int) -> None:
    plan = case.far_plan(groups=groups, ordered=ordered, dtype=torch.float16)
    wide = case.far_plan(groups=groups, ordered=ordered, dtype=torch.float64)
    assert_is_the_reference(case.tokens(torch.float16), plan, 4e-3, exact=wide)


@pytest.mark.usefixtures("stub")
def test_far_terms_of_long_blocks_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(1, 2, 300, 90, 64, 3, 5, seed=2)
    plan, wide = (
        case.far_plan(groups=2, dtype=dtype) for dtype in (torch.bfloat16, torch.float64)
    )
    for largest in (1, 1 << 24):
        monkeypatch.setattr(backend_module, "_LARGEST_CHUNK", largest)
        assert_is_the_reference(case.tokens(torch.bfloat16), plan, 3e-2, exact=wide)
