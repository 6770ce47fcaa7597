import json
from typing import Any

import pytest
from typer.testing import CliRunner

from svoo.app.cli import app
from svoo.app.estimate.data import find_card
from svoo.app.estimate.roofline import card_rates
from svoo.errors import SVOOError


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["estimate", *arguments])


def test_the_example_of_the_help() -> None:
    sizes = ["--height", "720", "--width", "1280", "--frames", "81"]
    model = ["--model", "wan2.1-t2v-14b", "--gpu", "h200", "--method", "paper"]
    done = invoke(*model, *sizes, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {"dense_seconds", "sparse_seconds", "speed_up", "peak_bytes"} <= found.keys()
    assert found["tokens"] == 75_600 and found["modelled"] is True
    assert {"kept_pairs", "terms", "clustering", "selection", "rest"} <= found["parts"].keys()
    shown = invoke()
    assert shown.exit_code == 0 and "MODELLED, not measured" in shown.stdout


def test_all_models_as_a_table() -> None:
    shown = invoke("--all").stdout
    assert "| hunyuanvideo-i2v | ours |" in shown and "the paper's -> modelled" in shown
    assert "the paper's -> modelled" not in invoke("--all", "--gpu", "h100").stdout
    assert len(json.loads(invoke("--all", "--json").stdout)) == 54


def test_calibrating_replaces_the_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = card_rates(find_card("l40s"))
    monkeypatch.setattr("svoo.app.estimate.calibrate.measure_rates", lambda *_: slow)
    found = json.loads(invoke("--model", "mini", "--calibrate", "--json").stdout)
    assert found["machine"] == slow.title


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "h300"], "--gpu must be one of h200"),
        (["--gpus", "7"], "--gpus 7 does not divide the 40 heads"),
        (["--model", "nobody/knows"], "no model called"),
        (["--method", "svg2"], "how much svg2 keeps depends on the video: give --density"),
        (["--density", "0"], "--density must be a number above 0"),
        (["--calibrate", "--gpu", "h200"], "leave --gpu out"),
        (["--frames", "6"], "num_frames must be a multiple of 4 plus 1, got 6; the nearest is 5"),
        (["--height", "1"], "height must be a multiple of 16, got 1; the nearest is 16"),
        (["--all", "--method", "svg2"], "--all shows models in their own sizes"),
        (["--all", "--density", "0.1"], "--all shows models in their own sizes"),
    ],
)
def test_bad_requests(arguments: list[str], message: str) -> None:
    refused = invoke(*arguments)
    assert isinstance(refused.exception, SVOOError) and message in str(refused.exception)
