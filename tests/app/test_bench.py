from dataclasses import replace

import torch

from svoo.app.bench import as_text, measure

CPU = torch.device("cpu")


def test_small_sizes_are_right_and_timed() -> None:
    rows = list(measure(CPU, tokens=(1_100, 1_200), heads=2, size=32))
    assert [row.tokens for row in rows] == [1_100, 1_100, 1_200, 1_200]
    assert [row.mode for row in rows] == ["paper", "default"] * 2
    assert [bool(row.kernels) for row in rows] == [True, False] * 2  # once for a size
    for row in rows:
        assert not row.wrong and 0 < row.density <= 1
        assert min(row.dense, row.planning, row.sparse) > 0
    text = as_text(rows, CPU)
    assert text.count("right") == 4 and "svoo bench" in text
    wrong = as_text([replace(rows[0], difference=0.5)], CPU)
    assert "WRONG: everything kept by 0.500" in wrong
    kernels = {**rows[0].kernels, "means": 0.3}
    assert "WRONG: means by 0.300" in as_text([replace(rows[0], kernels=kernels)], CPU)
