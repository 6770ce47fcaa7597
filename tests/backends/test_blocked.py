import pytest
import torch
from making import Case, plan_on

from svoo import run_plan
from svoo.backends import Workspace, attend
from svoo.backends import blocked as blocked_module


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_kept_in_inference_mode_serves_other_modes(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    case = Case(1, 2, 90, 80, 8, 4, 5, seed=5)
    plan = case.plan(compensate=True)
    backend, workspace = blocked_module.BlockedBackend(), Workspace()
    memory = set()
    try:
        for mode in torch.inference_mode, torch.no_grad, torch.enable_grad:
            with mode():
                query, key, value = (tensor.clone() for tensor in case.tokens())
                backend.run(
                    query, key, value, plan, scale=8**-0.5, return_lse=False, workspace=workspace
                )
                memory.add(workspace.nbytes)
    finally:
        torch.set_num_threads(before)
    assert min(memory) > 0
    workspace.clear()
    assert workspace.nbytes == 0


def test_a_call_of_another_shape_leaves_its_own_memory() -> None:
    workspace = Workspace()
    sizes = []
    for tokens in (40, 80, 40):
        case = Case(1, 1, tokens, tokens, 8, 2, 3, seed=1)
        plan = case.plan(compensate=True)
        output = attend(*case.tokens(), plan, backend="blocked", workspace=workspace)
        assert output.backend == "blocked"
        assert torch.equal(output.output, run_plan(*case.tokens(), plan, backend="blocked"))
        sizes.append(workspace.nbytes)
    assert sizes[0] == sizes[2] < sizes[1]


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
