from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
import studying

from svoo.methods.base import Call
from svoo.methods.svg2 import SVG2Config
from svoo.methods.warm_up import warm_up
from svoo.metrics.compare import Likeness
from svoo.studies.runs import RunRow, make_row

FACTS = {name: getattr(studying.ROW, name) for name in
         ("prompt", "machine", "tokens", "steps", "seed", "scores")}  # fmt: skip


def trial(seconds: float) -> Any:
    warm = "warm-up: the first 2 of 10 steps are dense"
    layers = [
        SimpleNamespace(backends={"cpp": 3}, dense_reasons={warm: 2}),
        SimpleNamespace(backends={"blocked": 1}, dense_reasons={warm: 2, "too dense": 4}),
    ]
    phases = {"clustering": 0.1, "selection": 0.2, "attention": 0.5}
    stats = SimpleNamespace(
        seconds=phases, layers=layers, work={"terms": 0.25, "other": 0.5}, sparse_calls=12,
        dense_calls=8, error=0.03,
    )  # fmt: skip
    return SimpleNamespace(
        config=SVG2Config(), stats=stats, density=0.3, denoising=seconds, total=2 * seconds,
        attention=seconds / 10,
    )  # fmt: skip


@pytest.mark.parametrize(("psnr", "shown"), [(30.0, 30.0), (float("inf"), None)])
def test_a_row_has_the_figures_of_both_runs(psnr: float, shown: float | None) -> None:
    row = make_row(trial(1.0), trial(4.0), Likeness(psnr, 0.9, None), **FACTS)
    assert (row.psnr, row.ssim, row.lpips) == (shown, 0.9, None)
    assert (row.seconds, row.dense_seconds, row.total_seconds) == (1.0, 4.0, 2.0)
    assert row.planning == pytest.approx(0.3) and row.work == 0.75
    assert (row.sparse_calls, row.dense_calls, row.error) == (12, 8, 0.03)
    assert row.dense_reasons == {"warm-up: the first 2 of 10 steps are dense": 4, "too dense": 4}
    assert row.density_of_all == pytest.approx((0.3 * 12 + 4) / 16)  # without the warm-up
    assert row.backends == ["blocked", "cpp"] and row.config["method"] == "svg2"


def test_the_warm_up_is_known_by_its_reason() -> None:
    config = SVG2Config(dense_steps=0.2, dense_layers=1)
    in_step, in_layer = warm_up(config, 10, Call(0, 1)), warm_up(config, 10, Call(5, 0))
    assert in_step is not None and in_layer is not None
    reasons = {in_step.reason: 3, in_layer.reason: 3, "the first step of this expert is dense": 2}
    row = replace(studying.ROW, density=0.5, sparse_calls=2, dense_calls=8, dense_reasons=reasons)
    assert row.density_of_all == 0.75
    all_dense = replace(row, density=1.0, sparse_calls=0, dense_reasons={"too dense": 8})
    assert all_dense.density_of_all == 1.0


def test_a_row_of_before_the_calls_were_counted_still_reads() -> None:
    names = ("sparse_calls", "dense_calls", "error", "dense_reasons")
    old = {name: value for name, value in asdict(studying.ROW).items() if name not in names}
    row = RunRow(**old)
    assert row.density_of_all == row.density and row.dense_reasons == {}


def test_the_dense_run_is_like_nothing() -> None:
    row = make_row(trial(4.0), trial(4.0), None, **FACTS)
    assert row.psnr is None and row.ssim is None and row.prompt == "p"
