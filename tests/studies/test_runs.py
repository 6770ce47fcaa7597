from types import SimpleNamespace
from typing import Any

import pytest
import studying

from svoo.methods.svg2 import SVG2Config
from svoo.metrics.compare import Likeness
from svoo.studies.runs import make_row

FACTS = {name: getattr(studying.ROW, name) for name in
         ("prompt", "machine", "tokens", "steps", "seed", "scores")}  # fmt: skip


def trial(seconds: float) -> Any:
    layers = [SimpleNamespace(backends={"cpp": 3}), SimpleNamespace(backends={"blocked": 1})]
    phases = {"clustering": 0.1, "selection": 0.2, "attention": 0.5}
    stats = SimpleNamespace(seconds=phases, layers=layers, work={"terms": 0.25, "other": 0.5})
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
    assert row.backends == ["blocked", "cpp"] and row.config["method"] == "svg2"


def test_the_dense_run_is_like_nothing() -> None:
    row = make_row(trial(4.0), trial(4.0), None, **FACTS)
    assert row.psnr is None and row.ssim is None and row.prompt == "p"
