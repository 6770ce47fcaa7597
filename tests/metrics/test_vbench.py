import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from svoo.errors import ModelError
from svoo.metrics import vbench
from svoo.metrics.vbench import DIMENSIONS, VBenchScores, why_no_vbench


def test_a_missing_package_is_named() -> None:
    assert why_no_vbench() == "the package vbench is not installed"
    with pytest.raises(ModelError, match="the package vbench is not installed"):
        VBenchScores()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A VBench that notes its calls, and a folder for its weights."""
    fake: Any = ModuleType("vbench")
    fake.__file__ = str(tmp_path / "package" / "__init__.py")
    fake.calls = []

    class Judge:
        def __init__(self, device: str, about: str, out: str) -> None:
            fake.calls.append((device, Path(about).name))
            self.out = Path(out)

        def evaluate(
            self, videos_path: str, name: str, dimension_list: list[str], **more: Any
        ) -> None:
            assert more == {"local": True, "mode": "custom_input"}
            (video,) = Path(videos_path).iterdir()
            assert video.suffix == ".mp4"
            found = {dimension: [0.5, []] for dimension in dimension_list}
            (self.out / f"{name}_eval_results.json").write_text(json.dumps(found))

    fake.VBench = Judge
    monkeypatch.setitem(sys.modules, "vbench", fake)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    for variable in ("VBENCH_CACHE_DIR", "TORCH_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    return tmp_path


def test_a_missing_file_is_named(installed: Path) -> None:
    assert (
        why_no_vbench()
        == f"{installed / 'VBENCH_CACHE_DIR' / 'clip_model/ViT-B-32.pt'} is not there"
    )


def test_the_four_dimensions_of_a_video(installed: Path) -> None:
    files = [installed / "VBENCH_CACHE_DIR" / name for name in vbench._FILES]
    for file in (*files, installed / "TORCH_HOME" / vbench._DINO):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    assert why_no_vbench() is None
    scores = VBenchScores()(np.zeros((3, 32, 32, 3)))
    assert scores == dict.fromkeys(DIMENSIONS.values(), 0.5)
    assert sys.modules["vbench"].calls == [("cpu", "VBench_full_info.json")]
