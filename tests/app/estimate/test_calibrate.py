import pytest
import torch

from svoo.app.estimate import calibrate
from svoo.app.estimate.calibrate import measure_rates, rates_of
from svoo.app.estimate.estimate import Video, estimate
from svoo.app.estimate.roofline import PASSES
from svoo.catalogue import find_model
from svoo.methods import find_method


def test_rates_are_work_over_seconds() -> None:
    found = rates_of((2.0, 0.5, 4.0), (10.0, 3.0, 8.0), link=1.0, memory=5.0, title="x")
    assert (found.attention, found.linear, found.bandwidth) == (5.0, 6.0, 2.0)
    assert (found.link, found.memory, found.title) == (1.0, 5.0, "x")
    assert "calibrated here" in found.source


def test_three_calls_are_timed_with_the_models_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = iter((1000.0, 500.0, 250.0))  # milliseconds of attention, product and norm

    def pretend(call: object, _device: torch.device) -> float:
        assert callable(call)
        call()  # what is timed runs
        return next(fake)

    monkeypatch.setattr(calibrate, "_TOKENS", {"cpu": 64})
    monkeypatch.setattr(calibrate, "milliseconds", pretend)
    found = measure_rates(find_model("mini"), torch.device("cpu"))
    assert found.attention == pytest.approx(4 * 64**2 * 128)
    assert found.linear == pytest.approx(2 * 64 * 128 * 512 / 0.5)
    assert found.bandwidth == pytest.approx(6 * 64 * 128 * 4 / 0.25)
    assert found.memory > 0


@pytest.mark.parametrize("size", [(25, 96, 160), (25, 144, 256), (49, 144, 256)])
def test_a_machine_that_keeps_to_its_rates_is_told_exactly(
    size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `benchmarks/estimate.py` does on a real machine, with pretended timings."""
    attention, linear, memory = 3e10, 5e10, 2e10
    work = iter((4 * 64**2 * 128, 2 * 64 * 128 * 512, 6 * 64 * 128 * 4))
    rates = iter((attention, linear, memory))
    monkeypatch.setattr(calibrate, "_TOKENS", {"cpu": 64})
    monkeypatch.setattr(calibrate, "milliseconds", lambda *_: 1e3 * next(work) / next(rates))
    model = find_model("mini")
    found = measure_rates(model, torch.device("cpu"))
    video = Video(model, *size, 5)
    got = estimate(video, found, find_method("dense", "mini"), itemsize=4)
    tokens = video.tokens
    products = 2 * (4 * 128**2 + 2 * 128 * 512) * tokens  # self-attention and feed-forward
    products += 4 * 128**2 * (tokens + 32) + 4 * tokens * 32 * 128  # attention to the text
    forward = 6 * (4 * tokens**2 * 128 / attention + products / linear)
    forward += 6 * PASSES * tokens * 128 * 4 / memory
    assert got.dense_seconds == pytest.approx(2 * 5 * forward)
