import pytest

from svoo.app.estimate.data import find_card
from svoo.app.estimate.estimate import Video, check_gpus, estimate
from svoo.app.estimate.roofline import card_rates
from svoo.app.estimate.tables import whole_video
from svoo.catalogue import find_model
from svoo.errors import ConfigError
from svoo.methods import find_method

RATES = card_rates(find_card("h200"))
MODEL = find_model("wan2.1-t2v-14b")
VIDEO = whole_video(MODEL)
PAPER = find_method("paper", MODEL.name)


def test_parts_add_up() -> None:
    found = estimate(VIDEO, RATES, PAPER)
    assert sum(found.parts.values()) == pytest.approx(found.sparse_seconds)
    assert sum(found.dense_parts.values()) == pytest.approx(found.dense_seconds)
    assert found.speed_up == pytest.approx(found.dense_seconds / found.sparse_seconds)
    assert 1 < found.speed_up < found.bound < found.bound_without_warm_up
    assert found.parts["exchange"] == found.exchanged_bytes == 0
    assert found.as_dict()["modelled"] is True


def test_a_dense_run_gains_nothing() -> None:
    found = estimate(VIDEO, RATES, find_method("dense", MODEL.name))
    assert found.speed_up == pytest.approx(1)


def test_several_gpus_share_the_work_and_exchange() -> None:
    one, eight = (estimate(VIDEO, RATES, PAPER, gpus=gpus) for gpus in (1, 8))
    assert one.dense_seconds / 8 < eight.dense_seconds < one.dense_seconds / 7
    # Of its eighth of q, k, v and the output each sends seven eighths, in 40 layers, 100 times.
    sent = 4 * (75_600 * 5120 * 2 / 8) * 7 / 8 * 40 * 100
    assert eight.exchanged_bytes == pytest.approx(sent)
    assert eight.parts["exchange"] == pytest.approx(sent / 450e9)
    assert eight.peak_bytes < one.peak_bytes  # activations are shared, weights are not
    assert eight.peak_bytes > 2 * 14e9
    check_gpus(MODEL, 5)
    for gpus, reason in ((3, "does not divide the 40 heads"), (0, "a whole number from 1")):
        with pytest.raises(ConfigError, match=reason):
            estimate(VIDEO, RATES, PAPER, gpus=gpus)


def test_smaller_videos_gain_less() -> None:
    small = estimate(Video(MODEL, 33, 480, 832, 50), RATES, PAPER)
    large = estimate(VIDEO, RATES, PAPER)
    assert small.tokens == 9 * 30 * 52 and small.speed_up < large.speed_up
    assert small.dense_seconds < large.dense_seconds / 10


def test_state_and_experts_are_in_the_memory() -> None:
    dense = estimate(VIDEO, RATES, find_method("dense", MODEL.name))
    sparse = estimate(VIDEO, RATES, PAPER)
    labels = 2 * 2 * 75_600 * 40 * 39
    assert sparse.peak_bytes - dense.peak_bytes == pytest.approx(labels)
    two = estimate(whole_video(find_model("wan2.2-t2v-a14b")), RATES, PAPER)
    assert two.peak_bytes > sparse.peak_bytes + 2 * 13e9
