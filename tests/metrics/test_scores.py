from pathlib import Path

import numpy as np
import pytest

from svoo.metrics.scores import HIGHER_IS_BETTER, find_scorer


def test_without_weights_nothing_is_scored_and_the_reasons_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    scorer, missing = find_scorer()
    assert scorer is None
    assert "the package vbench is not installed" in missing[0]
    assert "svoo weights scores" in missing[1] and "aesthetic quality: not available" in missing[2]


def test_what_is_there_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svoo.metrics.proxies.Proxies", lambda: lambda _frames: {"motion": 1.0})
    scorer, missing = find_scorer()
    assert scorer is not None and scorer(np.zeros((2, 4, 4, 3))) == {"motion": 1.0}
    assert len(missing) == 2
    assert HIGHER_IS_BETTER["imaging quality (proxy, BRISQUE)"] is False
