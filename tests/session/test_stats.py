import time

import pytest
import torch

from svoo.session.stats import LayerCounter, RunningMean, RunStats, Statistics, Stopwatch


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

    def record(self, stream: object) -> None:
        self.stream = stream

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.passed = True

    def elapsed_time(self, _end: object) -> float:
        return 500.0


def test_events_that_have_passed_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    watch = Stopwatch()
    for _ in range(3):
        with watch.phase("attention", torch.device("cuda", 1)):
            pass
    pairs = watch._events["attention"]
    streams = {event.stream for pair in pairs for event in pair}  # type: ignore[attr-defined]
    assert streams == {"the stream of cuda:1"}
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


def counted(*densities: torch.Tensor, recall: float | None = None) -> LayerCounter:
    counter = LayerCounter()
    for density in densities:
        counter.sparse_calls += 1
        counter.density.add(density)
        if recall is not None:
            counter.recall.add(torch.tensor([recall]))
    return counter


def test_a_layers_numbers_are_means_over_calls() -> None:
    counter = counted(torch.tensor([0.2, 0.4]), torch.tensor([0.4, 0.6]))
    counter.work["clustering"] += 0.04
    stats = counter.read(0, 3)
    assert (stats.stage, stats.layer) == (0, 3)
    assert stats.density_by_head == [0.30000001192092896, 0.5]
    assert stats.density is not None and round(stats.density, 6) == 0.4
    assert stats.recall is None and stats.work == {"clustering": 0.02}


def test_a_runs_numbers_are_weighted_by_calls() -> None:
    one, two = counted(torch.tensor([0.2]), recall=0.5), counted(*[torch.tensor([0.6])] * 3)
    run = RunStats("svoo", "auto", 1, 4, "", [one.read(0, 0), two.read(0, 1)], 7, ("a remark",))
    assert run.density == pytest.approx(0.5) and run.recall == pytest.approx(0.5)
    assert (run.sparse_calls, run.dense_calls) == (4, 0)
    data = run.as_dict()
    assert data["density"] == run.density and data["layers"][1]["sparse_calls"] == 3
    assert data["notes"] == ("a remark",) and set(data["seconds"]) >= {"attention", "dense"}
    assert RunStats("svoo", "auto", 0, None, "", [], 0).density is None


def test_notes_are_kept_once() -> None:
    statistics = Statistics()
    for text in ("one", "two", "one"):
        statistics.note(text)
    assert statistics.notes == ["one", "two"]
