from dataclasses import replace

import pytest
import torch
from making import made_profile

from svoo import DenseConfig, MethodConfig, SVOOConfig
from svoo.session.stats import LayerCounter, RunStats
from svoo.session.summary import describe_budgets, summarise


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


@pytest.mark.parametrize(
    ("config", "calibrate", "expected"),
    [
        (SVOOConfig(), False, "none: the tolerance 0.0128 decides"),
        (SVOOConfig.paper(), True, "measured in the warm-up"),
        (SVOOConfig.paper(), False, "none: mass alone decides"),
        (SVOOConfig(mass=0.5), True, "none: mass alone decides"),  # it has no dense step
        (DenseConfig(), True, "left to dense"),  # measures nothing
    ],
)
def test_where_budgets_come_from(config: MethodConfig, calibrate: bool, expected: str) -> None:
    assert describe_budgets(config, None, calibrate=calibrate) == expected


def test_a_profile_is_told_of_with_its_provenance() -> None:
    profile = replace(made_profile(), provenance={"model": "mini"})
    told = [
        describe_budgets(config, profile, calibrate=False)
        for config in (SVOOConfig.paper(), SVOOConfig(), DenseConfig())
    ]
    assert told[0] == "from a profile (model=mini)"
    assert told[1] == "none: the tolerance 0.0128 decides"
    assert told[2] == "left to dense, which was given a profile (model=mini)"
