"""What every fast backend of the CPU has to do: what the reference does."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, normal
from torch.nn.functional import scaled_dot_product_attention

from svoo import BlockPlan, FarTerms, VideoLayout, add_text, co_cluster, run_plan, select_blocks
from svoo.backends import BACKENDS
from svoo.core.plan import plan_from_clusters
from svoo.kernels.cpp import DTYPES

TOLERANCE = {  # an honest run: the reference in float64 against the same inputs rounded
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.bfloat16: 3e-2,
    torch.float16: 4e-3,
}
pytestmark = pytest.mark.usefixtures("fresh_memory_is_nan")
on_every_backend = pytest.mark.parametrize(
    "backend", ["blocked", pytest.param("cpp", marks=pytest.mark.compiler)]
)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@on_every_backend
@settings(max_examples=80)
@given(
    case=cases(max_tokens=60, sizes=(1, 3, 8, 16, 33)),
    compensate=st.booleans(),
    ordered=st.booleans(),
    return_lse=st.booleans(),
    scale=st.sampled_from((None, 0.0, 0.7)),
)
def test_it_is_the_reference(
    backend: str,
    dtype: torch.dtype,
    case: Case,
    compensate: bool,
    ordered: bool,
    return_lse: bool,
    scale: float | None,
) -> None:
    if backend == "cpp" and dtype not in DTYPES:
        pytest.skip("the C++ kernel leaves it to others")
    tokens = case.tokens(dtype)
    plan = case.plan(compensate=compensate, ordered=ordered)
    query, key, value = (tensor.double() for tensor in tokens)
    exact = run_plan(query, key, value, plan, backend="reference", scale=scale, return_lse=True)
    slack = TOLERANCE[dtype]
    if return_lse:
        output, lse = run_plan(*tokens, plan, backend=backend, scale=scale, return_lse=True)
        assert lse is not None and exact.lse is not None
        torch.testing.assert_close(lse.double(), exact.lse, atol=slack, rtol=slack)
    else:
        output = run_plan(*tokens, plan, backend=backend, scale=scale)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), exact.output, atol=slack, rtol=slack)


with_far_terms = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(backend.name, marks=[pytest.mark.compiler] * (backend.name == "cpp"))
        for backend in BACKENDS
        if backend.name in ("blocked", "cpp") and FarTerms in backend.needs.terms
    ],
)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@with_far_terms
@settings(max_examples=80)
@given(
    case=cases(max_tokens=60, sizes=(1, 3, 8, 16, 33)),
    groups=st.integers(0, 3),
    ordered=st.booleans(),
    text=st.integers(0, 5),
    text_first=st.booleans(),
    return_lse=st.booleans(),
    scale=st.sampled_from((None, 0.0, 0.7)),
)
def test_far_terms_are_the_reference(
    backend: str,
    dtype: torch.dtype,
    case: Case,
    groups: int,
    ordered: bool,
    text: int,
    text_first: bool,
    return_lse: bool,
    scale: float | None,
) -> None:
    if backend == "cpp" and dtype not in DTYPES:
        pytest.skip("the C++ kernel leaves it to others")
    narrow, wide = (
        case.far_plan(groups=groups, ordered=ordered, dtype=kind)
        for kind in (dtype, torch.float64)
    )
    tokens = case.tokens(dtype)
    if text and case.queries == case.keys:
        valid = torch.tensor([text, text // 2])[: case.batch]
        layout = VideoLayout(1, 1, case.keys, text, text_first, valid)
        narrow, wide = (add_text(plan, layout) for plan in (narrow, wide))
        longer = replace(case, queries=case.queries + text, keys=case.keys + text)
        tokens = longer.tokens(dtype)
    query, key, value = (tensor.double() for tensor in tokens)
    exact = run_plan(query, key, value, wide, backend="reference", scale=scale, return_lse=True)
    slack = TOLERANCE[dtype]
    if return_lse:
        output, lse = run_plan(*tokens, narrow, backend=backend, scale=scale, return_lse=True)
        assert lse is not None and exact.lse is not None
        torch.testing.assert_close(lse.double(), exact.lse, atol=slack, rtol=slack)
    else:
        output = run_plan(*tokens, narrow, backend=backend, scale=scale)
    torch.testing.assert_close(output.double(), exact.output, atol=slack, rtol=slack)


@with_far_terms
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("dtype", "slack"), [(torch.float32, 2e-5), (torch.bfloat16, 3e-2)])
def test_far_terms_of_many_blocks(backend: str, dtype: torch.dtype, slack: float) -> None:
    case = Case(2, 3, 700, 900, 40, 20, 50, seed=3)
    narrow, wide = (case.far_plan(groups=8, dtype=kind) for kind in (dtype, torch.float64))
    tokens = case.tokens(dtype)
    query, key, value = (tensor.double() for tensor in tokens)
    exact = run_plan(query, key, value, wide, backend="reference")
    output = run_plan(*tokens, narrow, backend=backend)
    torch.testing.assert_close(output.double(), exact, atol=slack, rtol=slack)


@on_every_backend
@pytest.mark.parametrize("size", [32, 40, 128])
@pytest.mark.parametrize("blocks", [1, 3, 50])
@pytest.mark.parametrize(("dtype", "slack"), [(torch.float32, 2e-5), (torch.bfloat16, 3e-2)])
def test_blocks_longer_than_any_buffer(
    backend: str, size: int, blocks: int, dtype: torch.dtype, slack: float
) -> None:
    case = Case(1, 2, 700, 900, size, blocks, 2 * blocks, seed=blocks)
    tokens, plan = case.tokens(dtype), case.plan(compensate=True)
    query, key, value = (tensor.double() for tensor in tokens)
    exact = run_plan(query, key, value, plan, backend="reference", return_lse=True)
    output, lse = run_plan(*tokens, plan, backend=backend, return_lse=True)
    assert lse is not None and exact.lse is not None
    torch.testing.assert_close(output.double(), exact.output, atol=slack, rtol=slack)
    torch.testing.assert_close(lse.double(), exact.lse, atol=slack, rtol=slack)


@on_every_backend
def test_logits_of_any_size(backend: str) -> None:
    """A softmax that is one key alone, or every key alike; late keys that dwarf the first ones."""
    case = Case(1, 1, 100, 300, 16, 3, 5, seed=3)
    query, key, value = case.tokens()
    key = key * torch.logspace(-3, 2, 300).view(1, 1, 300, 1)
    plan = case.plan(compensate=True)
    for scale in (1e-6, 1.0, 30.0):
        wide = query.double(), key.double(), value.double()
        exact = run_plan(*wide, plan, backend="reference", scale=scale)
        output = run_plan(query, key, value, plan, backend=backend, scale=scale)
        # A logit in the thousands has an error of its own in float32.
        torch.testing.assert_close(output.double(), exact, atol=2e-3, rtol=2e-3)


@on_every_backend
def test_what_is_not_a_number_stays_none(backend: str) -> None:
    case = Case(1, 1, 40, 50, 8, 2, 4, seed=1)
    query, key, value = case.tokens()
    query[0, 0, 7, 3] = torch.nan
    plan = case.plan(compensate=False)
    output = run_plan(query, key, value, plan, backend=backend)
    assert bool(output[0, 0, 7].isnan().all())
    assert int(output.isnan().any(dim=-1).sum()) == 1
    query, key, value = case.tokens()
    key[0, 0, 9, 3] = torch.nan
    sees = plan.to_dense_mask()[0, 0, :, 9]
    output = run_plan(query, key, value, plan, backend=backend)
    assert torch.equal(output[0, 0].isnan().all(dim=-1), sees) and bool((~sees).any())


@on_every_backend
@pytest.mark.parametrize("compensate", [False, True])
def test_text_and_padding(backend: str, compensate: bool) -> None:
    layout = VideoLayout(2, 3, 4, text=5, valid_text=torch.tensor([5, 2]))
    query, key, value = (normal(2, 3, 29, 8, seed=seed) for seed in range(3))
    clusters = co_cluster(layout.video_part(query), layout.video_part(key), 3, 6)
    plan = plan_from_clusters(
        clusters, select_blocks(clusters, mass=0.4), compensate=compensate, layout=layout
    )
    exact = run_plan(query, key, value, plan, backend="reference")
    torch.testing.assert_close(run_plan(query, key, value, plan, backend=backend), exact)
    # Padding receives nothing: whatever stands there, valid rows stay the same.
    key[1, :, 26:], value[1, :, 26:] = 100.0, 1e6
    again = run_plan(query, key, value, plan, backend=backend)
    torch.testing.assert_close(again[1, :, :26], exact[1, :, :26])


@on_every_backend
def test_keeping_everything_equals_sdpa_at_a_real_size(backend: str) -> None:
    query, key, value = (normal(1, 2, 600, 64, seed=seed) for seed in range(3))
    clusters = co_cluster(query, key, 10, 30)
    keep = select_blocks(clusters, mass=1.0)
    plan = plan_from_clusters(clusters, keep, compensate=True)
    assert plan.density().tolist() == [[1.0, 1.0]]
    dense = scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(run_plan(query, key, value, plan, backend=backend), dense)


@on_every_backend
def test_strided_inputs_as_diffusers_gives_them(backend: str) -> None:
    case = Case(2, 3, 40, 40, 8, 4, 6, seed=5)
    query, key, value = (normal(2, 40, 3, 8, seed=seed).transpose(1, 2) for seed in range(3))
    plan = case.plan(compensate=True)
    exact = run_plan(query, key, value, plan, backend="reference")
    torch.testing.assert_close(run_plan(query, key, value, plan, backend=backend), exact)
    query, key, value = (x.mT.contiguous().mT for x in (query, key, value))
    torch.testing.assert_close(run_plan(query, key, value, plan, backend=backend), exact)


@on_every_backend
def test_one_token(backend: str) -> None:
    query, key, value = normal(1, 1, 1, 4), normal(1, 1, 1, 4, seed=1), normal(1, 1, 1, 4, seed=2)
    one = torch.ones(1, 1, 1, dtype=torch.int64)
    plan = BlockPlan(None, None, one, one, one.bool().unsqueeze(-1))
    torch.testing.assert_close(run_plan(query, key, value, plan, backend=backend), value)


@on_every_backend
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_workers_agree_with_one_thread_in_every_mode(backend: str, mode: type) -> None:
    case = Case(2, 3, 200, 150, 16, 7, 9, seed=11)
    tokens, plan = case.tokens(), case.plan(compensate=True)
    with mode():
        query, key, value = (tensor.clone() for tensor in tokens)
        output, lse = run_plan(query, key, value, plan, backend=backend, return_lse=True)
        plain = run_plan(query, key, value, plan, backend=backend)
    exact = run_plan(*tokens, plan, backend="reference", return_lse=True)
    torch.testing.assert_close(output.clone(), exact.output, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(plain.clone(), exact.output, atol=2e-5, rtol=2e-5)
    assert lse is not None
    assert exact.lse is not None
    torch.testing.assert_close(lse.clone(), exact.lse, atol=2e-5, rtol=2e-5)
    assert torch.get_num_threads() == 2


@on_every_backend
@pytest.mark.usefixtures("two_threads")
def test_new_threads_keep_their_setting(backend: str) -> None:
    case = Case(1, 1, 20, 20, 8, 2, 3, seed=1)
    run_plan(*case.tokens(), case.plan(compensate=False), backend=backend)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 2


@on_every_backend
@pytest.mark.usefixtures("two_threads")
def test_two_callers_at_once(backend: str) -> None:
    def run(case: Case) -> torch.Tensor:
        return run_plan(*case.tokens(), case.plan(compensate=True), backend=backend)

    calls = [Case(1, 3, 300, 300, 16, 6, 9, seed=seed) for seed in range(4)]
    alone = [run(case) for case in calls]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(run, calls))
    for one, two in zip(alone, together, strict=True):
        assert torch.equal(one, two)
