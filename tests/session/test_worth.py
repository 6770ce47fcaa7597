from types import SimpleNamespace

import pytest
import torch
from making import normal
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from svoo import Session, SVOOConfig
from svoo.session import session as session_module
from svoo.session.worth import why_dense_pays


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: found)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))


def on_a_gpu(heads: int, tokens: int) -> Tensor:
    with FakeTensorMode():
        return torch.empty(1, heads, tokens, 128, dtype=torch.bfloat16, device="cuda:0")


@pytest.mark.usefixtures("h100")
def test_small_calls_stay_dense_and_say_so() -> None:
    small = on_a_gpu(12, 8_192)
    assert why_dense_pays(small, small, 12) == (
        "too small for this GPU: dense attention of 8,192 tokens in 12 heads takes about 0.6 ms, "
        "starting a sparse call's kernels 2.5 ms"
    )
    for heads, tokens in ((12, 32_760), (40, 75_600), (24, 118_800)):
        large = on_a_gpu(heads, tokens)
        assert why_dense_pays(large, large, heads) is None


@pytest.mark.usefixtures("h100")
@pytest.mark.parametrize(("capability", "pays"), [((8, 9), True), ((10, 3), False)])
def test_a_slower_card_pays_earlier(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], pays: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    tokens = on_a_gpu(12, 16_384)
    assert (why_dense_pays(tokens, tokens, 12) is None) == pays


@pytest.mark.usefixtures("h100")
def test_heads_on_other_gpus_count_as_if_they_were_here() -> None:
    for heads, tokens in ((12, 8_192), (12, 32_760), (40, 16_384)):
        alone = on_a_gpu(heads, tokens)
        for gpus in (2, 4):
            here = on_a_gpu(heads // gpus, tokens)
            assert why_dense_pays(here, here, heads) == why_dense_pays(alone, alone, heads)


def test_a_session_asks_for_all_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(session_module, "why_dense_pays", lambda *about: asked.append(about[2]))
    session = Session(SVOOConfig().always_sparse(), steps=1, layers=1, heads=8)
    query, key, value = (normal(1, 2, 60, 8, seed=seed) for seed in range(3))
    session.attend(query, key, value, step=0, layer=0, head_offset=2)
    assert asked == [8]


def test_on_a_cpu_there_is_nothing_to_start() -> None:
    tokens = normal(1, 1, 4, 8)
    assert why_dense_pays(tokens, tokens, 1) is None


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_the_summary_says_it_unless_a_backend_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setattr(session_module, "why_dense_pays", lambda *_sides: "too small")
    config = SVOOConfig(backend=backend).always_sparse()
    session = Session(config, steps=1, layers=1, heads=1)
    query, key, value = (normal(1, 1, 60, 8, seed=seed) for seed in range(3))
    session.attend(query, key, value, step=0, layer=0)
    assert ("1 dense calls: too small" in session.summary()) == (backend == "auto")
