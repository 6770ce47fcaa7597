import time

import pytest
import torch
from svoo.plugin.stats import LayerStats, RunningMean, Stopwatch, summarise


def mean_of(*values: torch.Tensor) -> RunningMean:
    mean = RunningMean()
    for value in values:
        mean.add(value)
    return mean


def test_phases_add_up() -> None:
    watch = Stopwatch()
    for _ in range(2):
        with watch.phase("attention", torch.device("cpu")):
            time.sleep(0.01)
    seconds = watch.seconds()
    assert 0.02 <= seconds["attention"] < 1
    assert seconds["clustering"] == 0


class FakeEvent:
    """Stands for a CUDA event: passed once `passed` says so."""

    passed = False

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None: ...

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.passed = True

    def elapsed_time(self, _end: object) -> float:
        return 500.0


def test_events_that_have_passed_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    watch = Stopwatch()
    for _ in range(3):
        with watch.phase("attention", torch.device("cuda")):
            pass
    pairs = watch._events["attention"]
    watch.fold()
    assert len(pairs) == 3  # none has passed, and nobody waits
    pairs[0][1].synchronize()
    pairs[1][1].synchronize()
    watch.fold()
    assert len(pairs) == 1
    assert watch.seconds()["attention"] == 1.5
    assert not pairs


def test_a_mean_follows_its_layer_to_another_device() -> None:
    mean = mean_of(torch.tensor([0.5]), torch.empty(1, device="meta"))
    assert mean._sum is not None and mean._sum.device.type == "meta"


def test_a_layers_numbers_are_means_over_calls() -> None:
    stats = LayerStats(
        sparse_calls=2, density=mean_of(torch.tensor([0.2, 0.4]), torch.tensor([0.4, 0.6]))
    )
    data = stats.as_data()
    assert data["density_by_head"] == [0.30000001192092896, 0.5]
    assert round(data["density"], 6) == 0.4
    assert data["recall"] is None


def test_the_table_has_a_row_a_layer_and_all_reasons() -> None:
    stats = LayerStats(sparse_calls=1, density=mean_of(torch.tensor([0.25])))
    stats.reasons["because"] = 3
    stats.backends["blocked"] = 1
    data = {
        "method": "svoo",
        "backend": "auto",
        "calls": 1,
        "steps": 20,
        "budgets": "measured",
        "density": 0.25,
        "layers": [{"stage": 0, "layer": 4, **stats.as_data()}],
        "seconds": stats.watch.seconds(),
        "state_bytes": 1234,
        "notes": ["a remark"],
    }
    text = summarise(data)
    assert "1 calls on the blocked backend (auto: the first that can run)" in text
    for part in (
        "    0     4       1",
        "0.250",
        "3 dense calls: because",
        "note: a remark",
        "1,234 bytes",
    ):
        assert part in text
