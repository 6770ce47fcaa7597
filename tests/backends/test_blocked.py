import pytest
import torch
from making import Case, plan_on

from svoo import run_plan
from svoo.backends import blocked as blocked_module


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
def test_an_error_in_a_worker_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("no room for the gathered rows")

    monkeypatch.setattr(blocked_module, "_attend", fail)
    case = Case(1, 2, 30, 30, 8, 3, 4, seed=2)
    with pytest.raises(MemoryError, match="no room"):
        run_plan(*case.tokens(), case.plan(compensate=False), backend="blocked")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_checked_plans_run_on_a_gpu(dtype: torch.dtype) -> None:
    case = Case(2, 2, 90, 80, 8, 4, 5, seed=5)
    plan = plan_on(torch.device("cuda"), case.plan(compensate=True))  # checked there
    query, key, value = case.tokens(dtype)
    exact = run_plan(query, key, value, case.plan(compensate=True), backend="reference")
    output = run_plan(query.cuda(), key.cuda(), value.cuda(), plan, backend="blocked")
    torch.testing.assert_close(output.cpu(), exact, atol=1e-5, rtol=1e-5)
