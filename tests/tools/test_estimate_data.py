import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from svoo.app.estimate.data import read
from svoo.errors import FileError
from tools.estimate_data import BENCHMARKS, DATA, TABLES, by_layer, mini, of_embedded_model, tables


def test_the_package_carries_what_the_authors_tables_say(official_profiles: Path) -> None:
    carried = read("densities")["models"]
    assert carried.keys() == TABLES.keys()
    name = "wan2.1-t2v-1.3b"  # the smallest table
    assert by_layer(official_profiles, [name]) == {name: carried[name]}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("densities.json", "architectures.json"):
        shutil.copy(DATA / name, tmp_path)
    return tmp_path


def test_the_package_carries_what_the_command_makes_of_the_embedded_model(data: Path) -> None:
    for name, part in (("densities", "far_field"), ("densities", "paper_mode")):
        spoilt = json.loads((data / f"{name}.json").read_text()) | {part: {}}
        (data / f"{name}.json").write_text(json.dumps(spoilt))
    spoilt = json.loads((data / "architectures.json").read_text())
    spoilt["models"]["mini"] = {}
    (data / "architectures.json").write_text(json.dumps(spoilt))
    mini(data, BENCHMARKS)
    for name in ("densities.json", "architectures.json"):
        assert (data / name).read_text() == (DATA / name).read_text(), (
            "after new weights or benchmarks: python -m tools.estimate_data mini"
        )


def test_the_authors_part_leaves_the_embedded_model_alone(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = read("densities")
    monkeypatch.setattr("tools.estimate_data.by_layer", lambda _folder: {"one": {"mean": [0.5]}})
    tables(tmp_path, data)
    assert json.loads((data / "densities.json").read_text()) == carried | {
        "models": {"one": {"mean": [0.5]}}
    }


def test_medians_by_size_and_tolerance() -> None:
    def row(density: float, setting: str = "paper", tolerance: float | None = None) -> Any:
        size = {"frames": 49, "height": 144, "width": 256}
        return {**size, "setting": setting, "config": {"tolerance": tolerance}, "density": density}

    rows = [row(0.1), row(0.4), row(0.3)]
    rows += [row(0.02, "fast", 0.004), row(0.04, "fast", 0.004), row(0.5, "bf16 products", 0.004)]
    found = of_embedded_model(rows)
    assert found["paper_mode"]["by_tokens"] == {"7488": 0.3}
    assert found["far_field"]["by_tokens"] == {"7488": {"0.004": 0.03}}
    assert "3 at 7,488 tokens" in found["far_field"]["source"]
    with pytest.raises(FileError, match="'paper'"):
        of_embedded_model(rows[3:])
