import itertools
from typing import Any

import pytest
import torch

from svoo.app.estimate import calibrate
from svoo.app.estimate.calibrate import Line, measure_rates
from svoo.app.estimate.data import find_architecture
from svoo.app.estimate.estimate import Video, estimate
from svoo.app.estimate.roofline import count_forward
from svoo.catalogue import find_model
from svoo.methods import find_method
from svoo.methods.svoo.config import SVOOConfig
from svoo.session import session as session_module

CPU = torch.device("cpu")
MINI = find_model("mini")
DENSE = find_method("dense", "mini")


def test_a_line_through_two_calls() -> None:
    found = Line.through((10.0, 3.0), (30.0, 7.0))
    assert (found.fixed, found.rate) == pytest.approx((1.0, 5.0))
    steep = Line.through((10.0, 1.0), (30.0, 7.0))  # it would begin below zero
    assert (steep.fixed, steep.rate) == pytest.approx((0.0, 30 / 7))
    for small in ((10.0, 8.0), (30.0, 3.0)):  # the larger one was no slower, or no larger
        assert Line.through(small, (30.0, 7.0)) == Line(0.0, 30 / 7)


def pretend(monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> list[str]:
    """Let the calls take these seconds, one after the other."""
    left, shapes = iter(seconds), []

    def time(call: Any, _device: torch.device, before: Any = None) -> float:
        if before is not None:
            before()
        shapes.append(str(tuple(call().shape)))  # what is timed runs
        return next(left)

    monkeypatch.setattr(calibrate, "_GRIDS", {"cpu": ((2, 8, 8), (4, 8, 8))})
    monkeypatch.setattr(calibrate, "_seconds", time)
    return shapes


def test_the_median_counts_and_what_goes_before_is_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, lasting = 0.0, iter([90.0, 3.0, 1.0, 2.0, 50.0, 2.5, 0.1, 2.0])  # the first warms up

    def pass_by(seconds: float) -> torch.Tensor:
        nonlocal now
        now += seconds
        return torch.empty(0)

    monkeypatch.setattr("time.perf_counter", lambda: now)
    found = calibrate._seconds(lambda: pass_by(next(lasting)), CPU, before=lambda: pass_by(1000.0))
    assert found == pytest.approx(2.0)


def test_a_layer_is_timed_after_an_attention_call(monkeypatch: pytest.MonkeyPatch) -> None:
    before: list[Any] = []

    def time(call: Any, _device: torch.device, **options: Any) -> float:
        before.append(options.get("before"))
        return float(call().numel())

    monkeypatch.setattr(calibrate, "_GRIDS", {"cpu": ((2, 8, 8), (4, 8, 8))})
    monkeypatch.setattr(calibrate, "_seconds", time)
    measure_rates(MINI, CPU, DENSE)
    assert before[0] is None
    assert [call().shape[2] for call in before[1:]] == [256, 256]


def test_attention_and_layers_of_two_sizes_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (count_forward(MINI, tokens).linear / MINI.layers for tokens in (64, 512))
    shapes = pretend(monkeypatch, [0.5, 0.1 + few / 1e9, 0.1 + many / 1e9])
    found = measure_rates(MINI, CPU, DENSE)
    heads, size = MINI.heads, MINI.head_dim
    assert found.attention == pytest.approx(4 * 256**2 * heads * size / 0.5)
    assert (found.linear, found.layer_seconds) == pytest.approx((1e9, 0.1))
    width = heads * size
    assert shapes == [f"(1, {heads}, 256, {size})", f"(1, 64, {width})", f"(1, 512, {width})"]
    assert found.memory > 0 and found.sparse is None and "calibrated here" in found.source


def test_wide_models_take_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_LAYER", {"cpu": 0.0})
    model = find_model("wan2.1-t2v-1.3b")
    shapes = pretend(monkeypatch, [1.0, 1.0, 2.0])
    monkeypatch.setattr(calibrate, "_GRIDS", {"cpu": ((2, 8, 8), (8, 8, 8))})
    measure_rates(model, CPU, DENSE)
    assert shapes == ["(1, 4, 512, 128)", "(1, 64, 1536)", "(1, 256, 1536)"]


@pytest.mark.parametrize("size", [(25, 96, 160), (25, 144, 256), (49, 144, 256)])
def test_a_machine_that_keeps_to_its_rates_is_told_exactly(
    size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `benchmarks/estimate.py` does on a real machine, with pretended timings."""
    attention, linear, fixed = 3e10, 5e10, 0.002
    few, many = (count_forward(MINI, tokens).linear / MINI.layers for tokens in (64, 512))
    width, wider = MINI.heads * MINI.head_dim, find_architecture(MINI).feed_forward
    times = [4 * 256**2 * width / attention, fixed + few / linear, fixed + many / linear]
    pretend(monkeypatch, times)
    found = measure_rates(MINI, CPU, DENSE)
    video = Video(MINI, *size, 5)
    got = estimate(video, found, DENSE, itemsize=4)
    tokens = video.tokens
    products = 2 * (4 * width**2 + 2 * width * wider) * tokens  # self-attention and feed-forward
    products += 4 * width**2 * (tokens + 32) + 4 * tokens * 32 * width  # attention to the text
    layer = 4 * tokens**2 * width / attention + products / linear
    forward = MINI.layers * layer + (MINI.layers + 2) * fixed
    assert got.dense_seconds == pytest.approx(2 * 5 * forward)
    assert got.speed_up == pytest.approx(1)


@pytest.mark.parametrize("config", [find_method("paper", "mini"), SVOOConfig()])
def test_sparse_calls_of_the_method_are_timed(
    config: SVOOConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids = {"cpu": ((4, 16, 16), (6, 16, 16))}
    pretend(monkeypatch, [0.5, 0.1, 0.2])
    monkeypatch.setattr(calibrate, "_GRIDS", grids)
    found = measure_rates(MINI, CPU, config)
    sparse = found.of_sparse_calls
    assert found.sparse is sparse
    for name in ("attention", "clustering", "selection"):
        assert getattr(sparse, name) > 0
    video = Video(MINI, 25, 96, 160, 5)
    got = estimate(video, found, config, itemsize=4)
    assert all(seconds >= 0 for seconds in got.parts.values())
    assert got.parts["kept_pairs"] > 0 and got.parts["clustering"] > 0


def test_known_seconds_of_sparse_calls_give_their_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    points = itertools.cycle(
        [
            calibrate._Point((100.0, 2.0), (10.0, 0.3), (4.0, 0.1)),
            calibrate._Point((300.0, 4.0), (30.0, 0.5), (8.0, 0.1)),
        ]
    )
    pretend(monkeypatch, [0.5, 0.1, 0.2])
    monkeypatch.setattr(calibrate, "_time_sparse", lambda *_: next(points))
    sparse = measure_rates(MINI, CPU, find_method("paper", "mini")).sparse
    assert sparse is not None
    assert (sparse.attention, sparse.call_seconds) == pytest.approx((100.0, 1.0))
    assert (sparse.clustering, sparse.clustering_seconds) == pytest.approx((100.0, 0.2))
    assert (sparse.selection, sparse.selection_seconds) == pytest.approx((80.0, 0.0))


def test_a_method_that_stays_dense_has_no_rates_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, [0.5, 0.1, 0.2])
    monkeypatch.setattr(session_module, "why_dense_pays", lambda *_: "too few tokens")
    found = measure_rates(MINI, CPU, find_method("paper", "mini"))
    assert found.sparse is None and found.of_sparse_calls.attention == found.attention
