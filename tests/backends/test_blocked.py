from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, normal
from torch.nn.functional import scaled_dot_product_attention

from svoo import BlockPlan, VideoLayout, co_cluster, run_plan, select_blocks
from svoo.backends import blocked as blocked_module
from svoo.plan import plan_from_clusters

TOLERANCE = {  # an honest run: the reference in float32 against the same inputs rounded
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.bfloat16: 3e-2,
    torch.float16: 4e-3,
}


@settings(max_examples=200)
@given(
    case=cases(),
    dtype=st.sampled_from(tuple(TOLERANCE)),
    compensate=st.booleans(),
    ordered=st.booleans(),
    return_lse=st.booleans(),
    scale=st.sampled_from((None, 0.0, 0.7)),
)
def test_it_is_the_reference(
    case: Case,
    dtype: torch.dtype,
    compensate: bool,
    ordered: bool,
    return_lse: bool,
    scale: float | None,
) -> None:
    tokens = case.tokens(dtype)
    plan = case.plan(compensate=compensate, ordered=ordered)
    query, key, value = (tensor.double() for tensor in tokens)
    exact = run_plan(query, key, value, plan, backend="reference", scale=scale, return_lse=True)
    if return_lse:
        output, lse = run_plan(*tokens, plan, backend="blocked", scale=scale, return_lse=True)
        assert lse is not None and exact.lse is not None
        torch.testing.assert_close(
            lse.double(), exact.lse, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
        )
    else:
        output = run_plan(*tokens, plan, backend="blocked", scale=scale)
    assert output.dtype == dtype
    torch.testing.assert_close(
        output.double(), exact.output, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("compensate", [False, True])
def test_text_and_padding(compensate: bool) -> None:
    layout = VideoLayout(2, 3, 4, text=5, valid_text=torch.tensor([5, 2]))
    query, key, value = (normal(2, 3, 29, 8, seed=seed) for seed in range(3))
    clusters = co_cluster(layout.video_part(query), layout.video_part(key), 3, 6)
    plan = plan_from_clusters(
        clusters, select_blocks(clusters, mass=0.4), compensate=compensate, layout=layout
    )
    exact = run_plan(query, key, value, plan, backend="reference")
    torch.testing.assert_close(run_plan(query, key, value, plan, backend="blocked"), exact)
    # Padding receives nothing: whatever stands there, valid rows stay the same.
    key[1, :, 26:], value[1, :, 26:] = 100.0, 1e6
    again = run_plan(query, key, value, plan, backend="blocked")
    torch.testing.assert_close(again[1, :, :26], exact[1, :, :26])


def test_keeping_everything_equals_sdpa_at_a_real_size() -> None:
    query, key, value = (normal(1, 2, 600, 64, seed=seed) for seed in range(3))
    clusters = co_cluster(query, key, 10, 30)
    keep = select_blocks(clusters, mass=1.0)
    plan = plan_from_clusters(clusters, keep, compensate=True)
    assert plan.density().tolist() == [[1.0, 1.0]]
    dense = scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(run_plan(query, key, value, plan, backend="blocked"), dense)


def test_strided_inputs_as_diffusers_gives_them() -> None:
    case = Case(2, 3, 40, 40, 8, 4, 6, seed=5)
    query, key, value = (normal(2, 40, 3, 8, seed=seed).transpose(1, 2) for seed in range(3))
    plan = case.plan(compensate=True)
    exact = run_plan(query, key, value, plan, backend="reference")
    torch.testing.assert_close(run_plan(query, key, value, plan, backend="blocked"), exact)


def test_one_token() -> None:
    query, key, value = normal(1, 1, 1, 4), normal(1, 1, 1, 4, seed=1), normal(1, 1, 1, 4, seed=2)
    one = torch.ones(1, 1, 1, dtype=torch.int64)
    plan = BlockPlan(None, None, one, one, one.bool().unsqueeze(-1))
    torch.testing.assert_close(run_plan(query, key, value, plan, backend="blocked"), value)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_workers_agree_with_one_thread_in_every_mode(mode: type) -> None:
    case = Case(2, 3, 200, 150, 16, 7, 9, seed=11)
    tokens, plan = case.tokens(), case.plan(compensate=True)
    with mode():
        query, key, value = (tensor.clone() for tensor in tokens)
        output, lse = run_plan(query, key, value, plan, backend="blocked", return_lse=True)
        plain = run_plan(query, key, value, plan, backend="blocked")
    exact = run_plan(*tokens, plan, backend="reference", return_lse=True)
    torch.testing.assert_close(output.clone(), exact.output, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(plain.clone(), exact.output, atol=2e-5, rtol=2e-5)
    assert lse is not None
    assert exact.lse is not None
    torch.testing.assert_close(lse.clone(), exact.lse, atol=2e-5, rtol=2e-5)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_kept_in_inference_mode_serves_other_modes(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    case = Case(1, 2, 90, 80, 8, 4, 5, seed=5)
    plan = case.plan(compensate=True)
    backend = blocked_module.BlockedBackend()
    try:
        for mode in torch.inference_mode, torch.no_grad, torch.enable_grad:
            with mode():
                query, key, value = (tensor.clone() for tensor in case.tokens())
                backend.run(query, key, value, plan, scale=8**-0.5, return_lse=False)
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_new_threads_keep_their_setting() -> None:
    case = Case(1, 1, 20, 20, 8, 2, 3, seed=1)
    run_plan(*case.tokens(), case.plan(compensate=False), backend="blocked")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 2


@pytest.mark.usefixtures("two_threads")
def test_two_callers_at_once() -> None:
    def run(case: Case) -> torch.Tensor:
        return run_plan(*case.tokens(), case.plan(compensate=True), backend="blocked")

    calls = [Case(1, 3, 300, 300, 16, 6, 9, seed=seed) for seed in range(4)]
    alone = [run(case) for case in calls]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(run, calls))
    for one, two in zip(alone, together, strict=True):
        assert torch.equal(one, two)


@pytest.mark.usefixtures("two_threads")
def test_an_error_in_a_worker_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("no room for the gathered rows")

    monkeypatch.setattr(blocked_module, "_attend", fail)
    case = Case(1, 2, 30, 30, 8, 3, 4, seed=2)
    with pytest.raises(MemoryError, match="no room"):
        run_plan(*case.tokens(), case.plan(compensate=False), backend="blocked")
