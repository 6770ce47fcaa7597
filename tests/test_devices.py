"""What the sparse path asks of a device, found without one."""

from collections.abc import Callable

import pytest
import torch
from making import normal
from refusing import NoFloat64, OnlyDeterministic
from torch.utils._python_dispatch import TorchDispatchMode

from svoo import Session, SVOOConfig, VideoLayout, co_cluster, required_density, select_blocks
from svoo.core.selection import keep_mass
from svoo.errors import SlowBackendError
from svoo.session import session as session_module

CONFIGS = [
    SVOOConfig.paper(),
    SVOOConfig(),
]


def run_session(config: SVOOConfig, mode: Callable[[], TorchDispatchMode]) -> None:
    layout = VideoLayout(2, 10, 10, text=5, valid_text=torch.tensor([5, 2]))
    config = config.always_sparse()
    session = Session(config, steps=2, layers=1, heads=2)
    query, key, value = (normal(2, 2, 205, 16, seed=seed) for seed in range(3))
    with mode():
        for step in range(2):
            session.attend(query, key, value, step=step, layer=0, layout=layout)


@pytest.mark.parametrize("config", CONFIGS, ids=["paper", "default"])
@pytest.mark.parametrize("mode", [NoFloat64, OnlyDeterministic])
def test_a_sparse_call_needs_neither_float64_nor_running_sums(
    config: SVOOConfig, mode: Callable[[], TorchDispatchMode]
) -> None:
    """On MPS there is no float64; on CUDA a deterministic torch has no running sums of floats."""
    run_session(config, mode)


def test_the_modes_refuse() -> None:
    with NoFloat64(), pytest.raises(TypeError, match="float64"):
        normal(3).double()
    with OnlyDeterministic(), pytest.raises(RuntimeError, match="deterministic"):
        normal(3).cumsum(0)


def test_selection_and_measuring_are_deterministic() -> None:
    query, key = normal(1, 2, 60, 8), normal(1, 2, 90, 8, seed=1)
    with OnlyDeterministic():
        clusters = co_cluster(query, key, 4, 9)
        select_blocks(clusters, torch.tensor([0.3, 0.05]), mass=0.8)
        keep_mass(normal(3, 9).softmax(-1), 0.7)
    wanted = required_density(query, key, mass=(0.5, 0.95), exact=False)
    assert wanted.value.shape == (1, 2, 2)


def test_a_gpu_without_fast_kernels_stays_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only slow backends can run: the call is dense, says why, and plans nothing further."""

    def attend(*_tokens: object, **_settings: object) -> None:
        raise SlowBackendError("no backend is fast on this GPU: triton is not installed")

    monkeypatch.setattr(session_module, "attend", attend)
    session = Session(SVOOConfig.paper().always_sparse(), steps=3, layers=1, heads=2)
    query, key, value = (normal(1, 2, 200, 16, seed=seed) for seed in range(3))
    dense = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    for step in range(3):
        got = session.attend(query, key, value, step=step, layer=0)
        torch.testing.assert_close(got, dense)
        monkeypatch.setattr(session.method, "plan", None)  # asked once, not again
    (layer,) = session.stats().layers
    (reason,) = layer.dense_reasons
    assert layer.dense_calls == 3 and "no backend is fast on this GPU" in reason
