import os
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from making import Case, normal, plan_on
from synthetic import clustered_tokens
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo import SVOOConfig, VideoLayout, co_cluster, run_plan, select_blocks
from svoo.backends import BACKENDS, resolve
from svoo.backends.triton import TritonBackend
from svoo.core.needs import Needs
from svoo.core.plan import BlockPlan, plan_from_clusters
from svoo.core.random import seeded
from svoo.errors import BackendUnavailableError
from svoo.methods.base import Call
from svoo.methods.svoo.method import plan_call


@pytest.fixture
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the backend run in the interpreter, which it never does unasked."""
    monkeypatch.setattr(TritonBackend, "needs", Needs())


@pytest.mark.usefixtures("_allowed")
@pytest.mark.parametrize("compensate", [False, True])
def test_text_and_padding(kernel_device: torch.device, compensate: bool) -> None:
    layout = VideoLayout(2, 3, 4, text=5, valid_text=torch.tensor([5, 2]))
    query, key, value = (normal(2, 3, 29, 32, seed=seed) for seed in range(3))
    clusters = co_cluster(layout.video_part(query), layout.video_part(key), 3, 6)
    plan = plan_from_clusters(
        clusters, select_blocks(clusters, mass=0.4), compensate=compensate, layout=layout
    )
    exact = run_plan(query, key, value, plan, backend="reference")
    # Padding receives nothing: whatever stands there, valid rows stay the same.
    key[1, :, 26:], value[1, :, 26:] = 100.0, 1e6
    query, key, value = (tokens.to(kernel_device) for tokens in (query, key, value))
    got = run_plan(query, key, value, plan_on(kernel_device, plan), backend="triton").cpu()
    torch.testing.assert_close(got[0], exact[0])
    torch.testing.assert_close(got[1, :, :26], exact[1, :, :26])


@pytest.mark.usefixtures("_allowed")
def test_return_lse_is_as_asked(kernel_device: torch.device) -> None:
    case = Case(1, 1, 20, 20, 32, 2, 3, seed=0)
    query, key, value = (tokens.to(kernel_device) for tokens in case.tokens())
    plan = plan_on(kernel_device, case.plan(compensate=True))
    with_lse = run_plan(query, key, value, plan, backend="triton", return_lse=True)
    assert with_lse.lse is not None
    assert torch.equal(run_plan(query, key, value, plan, backend="triton"), with_lse.output)


def test_asked_for_by_name_it_runs_or_says_why_not() -> None:
    case = Case(1, 1, 20, 20, 32, 2, 3, seed=0)
    query, key, value = case.tokens(torch.float64)
    with pytest.raises(BackendUnavailableError, match="triton: needs a CUDA tensor, got cpu"):
        run_plan(query, key, value, case.plan(compensate=False), backend="triton")


def test_auto_never_takes_the_interpreter() -> None:
    case = Case(1, 1, 20, 20, 32, 2, 3, seed=0)
    if not torch.cuda.is_available():
        assert os.environ["TRITON_INTERPRET"] == "1"  # the temptation is there
    assert resolve("auto", case.tokens()[0], case.plan(compensate=True)).name != "triton"
    assert BACKENDS[0].name == "triton"


@pytest.mark.gpu
def test_speed_at_75_600_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten heads of a Wan layer at 720p against SDPA: the same output where everything is kept,
    less time where a fifth is."""
    tokens = clustered_tokens(1, 10, 75_600, 128, groups=300, generator=seeded())
    query, key, value = (side.bfloat16().cuda() for side in tokens)
    budgets = torch.full((10,), 0.2, device="cuda")

    def plan() -> BlockPlan:
        call = Call(0, 0, generator=seeded())
        return plan_call(query, key, SVOOConfig.mean_terms(), call, budgets=budgets)

    def sparse(plan: BlockPlan) -> Tensor:
        return run_plan(query, key, value, plan, backend="triton")

    def dense() -> Tensor:
        return scaled_dot_product_attention(query, key, value)

    fifth = plan()
    everything = replace(fifth, keep=torch.ones_like(fifth.keep))
    torch.testing.assert_close(sparse(everything), dense(), atol=2e-2, rtol=2e-2)
    times = {
        "dense": milliseconds(dense),
        "sparse": milliseconds(lambda: sparse(fifth)),
        "planning": milliseconds(plan),
    }
    density = float(fifth.density().mean())
    with capsys.disabled():
        print(f"\n{torch.cuda.get_device_name()}, density {density:.3f}, ms: {times}")  # noqa: T201
    assert times["sparse"] + times["planning"] < times["dense"]


def milliseconds(call: Callable[[], object]) -> float:
    call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 10
