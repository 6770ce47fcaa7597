"""Windows are searched with a pipeline by name, stored, and used by `--method sta`."""

from pathlib import Path

import pytest
import torch

from svoo.catalogue import find_model
from svoo.errors import ProfileError
from svoo.methods.sta import STAConfig
from svoo.methods.sta_search import CANDIDATES
from svoo.plugin.request import Request, choose_method, known_model
from svoo.plugin.run import generate
from svoo.plugin.windows import record_windows
from svoo.profiles.windows import WindowTable

MINI = find_model("mini")
SMALL = {"frames": 25, "height": 80, "width": 80, "steps": 3}


def test_a_search_is_written_and_generates(tmp_path: Path) -> None:
    out = tmp_path / "windows.safetensors"
    done: list[float] = []
    request = Request(prompt="", out=out, **SMALL)  # type: ignore[arg-type]
    table = record_windows(request, [{"prompt": "a red circle"}], done.append)
    assert done[-1] == 1
    assert torch.equal(WindowTable.load(out).windows, table.windows)
    assert table.windows.shape == (3, MINI.layers, MINI.heads, 3)
    assert table.windows[0].flatten(0, 1).unique(dim=0).tolist() == [[2, 2, 2]]  # the whole grid
    assert {tuple(window) for window in table.windows[1:].flatten(0, 2).tolist()} <= set(
        CANDIDATES
    )
    video = tmp_path / "video.mp4"
    request = Request(
        prompt="a red circle",
        out=video,
        method="sta",
        profile=out,
        **SMALL,  # type: ignore[arg-type]
    )
    record = generate(request)
    assert video.exists() and record["config"]["windows"] == str(out)
    # So few tiles that the best window, 3 x 3 x 3, is all of them, and the file says so.
    reasons = record["stats"]["layers"][0]["dense_reasons"]
    assert "the stored windows cover the grid at this step" in reasons


def test_another_file_is_refused_before_any_work(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(b"no table")
    request = Request(prompt="", out=tmp_path / "x.mp4", method="sta", profile=path)
    with pytest.raises(ProfileError, match="cannot read windows from"):
        choose_method(request, known_model("mini"))
    config = choose_method(Request(prompt="", out=path, method="sta"), known_model("mini"))
    assert isinstance(config, STAConfig) and config.windows is None
