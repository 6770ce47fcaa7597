from typing import Any

from svoo.plugin.stats import PHASES
from svoo.plugin.summary import WIDTH, summarise

FACTS = " ".join(f"fact-{number}=value-{number}" for number in range(30))


def stats(**changes: Any) -> dict[str, Any]:
    row = {
        "stage": 1,
        "layer": 39,
        "sparse_calls": 1000,
        "dense_calls": 20,
        "dense_reasons": {"the warm-up": 20},
        "backends": {"cpp": 1000},
        "density": 0.127,
        "recall": None,
        "seconds": dict.fromkeys(PHASES, 12345.678),
    }
    return {
        "method": "svoo",
        "backend": "auto",
        "calls": 1,
        "steps": 50,
        "budgets": f"from a profile ({FACTS})",
        "density": 0.127,
        "layers": [row, row | {"density": None}],
        "seconds": dict.fromkeys(PHASES, 1.0),
        "state_bytes": 123456789,
        "notes": ["a note " * 30],
    } | changes


def test_it_fits_a_plain_terminal_and_provenance_comes_last() -> None:
    text = summarise(stats())
    assert max(map(len, text.splitlines())) <= WIDTH == 80
    assert " ".join(text.split()).endswith(f"budgets: from a profile ({FACTS})")
    assert "2000 calls on the cpp backend (auto: the first that can run)" in text
    assert "40 dense calls: the warm-up" in text and "0.127" in text


def test_columns_stand_under_their_names() -> None:
    header, row, dense = summarise(stats()).splitlines()[2:5]
    for name, value in (("sparse", "1000"), ("density", "0.127"), ("dense", "12345.68")):
        assert header.rindex(name) + len(name) == row.rindex(value) + len(value)
    assert len(header) == len(row) == len(dense)
