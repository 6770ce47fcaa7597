import torch

from svoo.session.stats import LayerCounter, RunStats
from svoo.session.summary import summarise


def test_the_table_has_a_row_per_layer_and_all_reasons_within_80_columns() -> None:
    counter = LayerCounter()
    counter.sparse_calls = 1
    counter.density.add(torch.tensor([0.25]))
    counter.reasons["because"] = 3
    counter.backends["blocked"] = 1
    stats = RunStats(
        "svoo",
        "auto",
        1,
        20,
        "from a profile " + "x " * 80,
        [counter.read(0, 4)],
        1234,
        ["a remark"],
    )
    text = summarise(stats)
    for part in (
        "1 calls on the blocked backend (auto: the first that can run)",
        "    0     4      1      0   0.250",
        "3 dense calls: because",
        "note: a remark",
        "1,234 bytes",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[-1].startswith("  x")  # provenance comes last
