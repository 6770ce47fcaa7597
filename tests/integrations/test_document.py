"""docs/integrations.md: its example of an own loop runs as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()


def test_the_example_of_an_own_loop(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/integrations.md", "exec"), names)
    stats = names["session"].stats()
    assert (stats.sparse_calls, stats.dense_calls) == (16, 0)  # 8 steps, 2 layers
    assert 0 < stats.density < 0.5
    difference = (names["video"] - names["exact"]).norm() / names["exact"].norm()
    assert 0 < float(difference) < 0.02
    printed = capsys.readouterr().out
    assert "method svoo" in printed and "relative difference" in printed
