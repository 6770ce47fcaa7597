from typing import Any

import numpy as np
import pytest
import tiny

from svoo import SVOOConfig
from svoo.plugin import trial as trial_module
from svoo.plugin.apply import Handle, apply
from svoo.plugin.trial import Trial, run_trial, warm_up
from svoo.session.stats import RunStats


@pytest.fixture(scope="module")
def pipe() -> Any:
    return tiny.build("wan2.1-t2v")


@pytest.fixture(scope="module")
def dense(pipe: Any) -> Trial:
    return run_trial(pipe, "dense", None, call=tiny.call_arguments(pipe, 5))


def test_dense_is_the_pipeline_as_it_is(pipe: Any, dense: Trial) -> None:
    plain = tiny.generate(pipe, steps=5, output_type="np")
    np.testing.assert_array_equal(dense.frames, plain)
    assert (dense.density, dense.recall, dense.likeness) == (1.0, 1.0, None)
    assert 0 < dense.denoising < dense.total
    assert dense.attention > 0


def test_a_sparse_trial_is_compared_and_its_recall_not_timed(pipe: Any, dense: Trial) -> None:
    config = SVOOConfig(
        mass=0.5, dense_layers=0, measure_recall=True, query_clusters=4, key_clusters=8
    )
    seen: list[tuple[int, int]] = []
    trial = run_trial(
        pipe,
        "sparse",
        config,
        call=tiny.call_arguments(pipe, 5),
        against=dense,
        on_step=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(step, 5) for step in range(1, 6)]
    assert 0 < trial.density < 1 and 0 < trial.recall < 1
    assert trial.likeness is not None and 5 < trial.likeness.psnr < 100
    assert trial.stats.seconds["recall"] > 0
    assert trial.config is config
    sparse = [row.sparse_calls for row in trial.stats.layers]
    phases = ("clustering", "selection", "attention")
    seconds = sum(trial.stats.seconds[phase] for phase in phases)
    assert trial.attention == pytest.approx(seconds / sum(sparse))
    unmeasured = run_trial(
        pipe, "sparse", SVOOConfig(mass=0.5), call=tiny.call_arguments(pipe, 5), against=dense
    )
    assert np.isnan(unmeasured.recall)


def test_attention_is_timed_when_the_ramp_is_over(
    pipe: Any, dense: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SVOOConfig(mass=0.5, dense_layers=0, dense_steps=1, ramp=0.4)
    handles: list[Handle] = []
    early: list[RunStats] = []

    def apply_and_keep(*arguments: Any) -> Handle:
        handles.append(apply(*arguments))
        return handles[0]

    def look(done: int, _steps: int) -> None:
        if done == 3:  # one dense step, two of the ramp
            early.append(handles[0].stats())

    monkeypatch.setattr(trial_module, "apply", apply_and_keep)

    trial = run_trial(
        pipe, "ramp", config, call=tiny.call_arguments(pipe, 5), against=dense, on_step=look
    )
    late = {
        phase: trial.stats.seconds[phase] - early[0].seconds[phase]
        for phase in ("clustering", "selection", "attention")
    }
    calls = sum(row.sparse_calls for row in trial.stats.layers)
    before = sum(row.sparse_calls for row in early[0].layers)
    assert 0 < before < calls
    assert trial.attention == pytest.approx(sum(late.values()) / (calls - before))


def test_warming_up_runs_a_dense_and_a_sparse_step(
    pipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles: list[Handle] = []

    def apply_and_keep(*arguments: Any) -> Handle:
        handles.append(apply(*arguments))
        return handles[-1]

    monkeypatch.setattr(trial_module, "apply", apply_and_keep)
    warm_up(pipe, tiny.call_arguments(pipe, 5))
    dense, sparse = (handle.stats() for handle in handles)
    assert dense.density is None and sparse.density is not None
    assert all(row.dense_calls == 0 for row in sparse.layers)


def test_keeping_everything_is_dense(pipe: Any, dense: Trial) -> None:
    config = SVOOConfig(mass=1.0, dense_steps=0)
    trial = run_trial(pipe, "all", config, call=tiny.call_arguments(pipe, 5), against=dense)
    assert trial.likeness is not None and trial.likeness.psnr > 80
