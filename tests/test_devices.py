"""What the sparse path asks of a device, found without one."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from making import normal
from methods_common import SMALL
from refusing import NoFloat64, OnlyDeterministic
from torch.utils._python_dispatch import TorchDispatchMode

from svoo import (
    MethodConfig,
    Session,
    SVOOConfig,
    VideoLayout,
    available_methods,
    co_cluster,
    required_density,
    select_blocks,
)
from svoo.core.selection import keep_mass
from svoo.errors import SlowBackendError
from svoo.methods import find_method
from svoo.methods.spargeattn import SpargeAttnConfig
from svoo.methods.vmoba import VMoBAConfig
from svoo.session import session as session_module

CONFIGS: dict[str, MethodConfig] = {"paper": SVOOConfig.paper(), "default": SVOOConfig()} | {
    row.name: replace(find_method(row.name), **SMALL.get(row.name, {}))
    for row in available_methods()
    if row.name not in ("dense", "svoo")
}
CONFIGS["spargeattn, cdf"] = SpargeAttnConfig(topk=None, cdf=0.8, **SMALL["spargeattn"])
CONFIGS["vmoba, heads"] = VMoBAConfig(scope="head", **SMALL["vmoba"])


def run_session(config: MethodConfig, mode: Callable[[], TorchDispatchMode]) -> None:
    layout = VideoLayout(2, 10, 10, text=5, valid_text=torch.tensor([5, 2]))
    config = config.always_sparse()
    session = Session(config, steps=2, layers=1, heads=2)
    query, key, value = (normal(2, 2, 205, 16, seed=seed) for seed in range(3))
    with mode():
        for step in range(2):
            session.attend(query, key, value, step=step, layer=0, layout=layout)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        (name, mode)
        for name in CONFIGS
        for mode in (NoFloat64, OnlyDeterministic)
        # ClusterAttention draws on the host, in float64.
        if (name, mode) != ("clusterattention", NoFloat64)
    ],
)
def test_a_sparse_call_needs_neither_float64_nor_running_sums(
    monkeypatch: pytest.MonkeyPatch, name: str, mode: Callable[[], TorchDispatchMode]
) -> None:
    """On MPS there is no float64; on CUDA a deterministic torch has no running sums of floats."""
    if mode is OnlyDeterministic:
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    run_session(CONFIGS[name], mode)


def test_the_modes_refuse() -> None:
    with NoFloat64(), pytest.raises(TypeError, match="float64"):
        normal(3).double()
    with OnlyDeterministic(), pytest.raises(RuntimeError, match="deterministic"):
        normal(3).cumsum(0)
    with OnlyDeterministic(), pytest.raises(RuntimeError, match="deterministic"):
        normal(3).kthvalue(2)


def test_selection_and_measuring_are_deterministic() -> None:
    query, key = normal(1, 2, 60, 8), normal(1, 2, 90, 8, seed=1)
    with OnlyDeterministic():
        clusters = co_cluster(query, key, 4, 9)
        select_blocks(clusters, torch.tensor([0.3, 0.05]), mass=0.8)
        keep_mass(normal(3, 9).softmax(-1), 0.7)
        required_density(query, key, mass=(0.5, 0.95))
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
