import pytest
import studying

from svoo.methods import available_methods, find_method
from svoo.methods.base import MethodConfig
from svoo.methods.svoo.config import SVOOConfig
from svoo.studies.base import Table
from svoo.studies.comparisons import read_entries
from svoo.studies.settings import OURS, PAPER
from svoo.studies.tradeoff import SWEEPS, TradeoffStudy, _thin, curves, knob_of


@pytest.mark.parametrize("name", list(SWEEPS))
def test_every_sweep_is_a_setting_of_its_method(name: str) -> None:
    own: dict[str, MethodConfig] = {OURS: SVOOConfig.balanced(), PAPER: SVOOConfig.paper("mini")}
    config = own.get(name) or find_method(name, "mini")
    field = knob_of(name)
    for value in SWEEPS[name]:
        changed = type(config)(**{**vars(config), field: value})
        assert getattr(changed, field) == value


def test_the_sweep_of_ours_holds_the_three_qualities() -> None:
    values, default = SWEEPS[OURS], SVOOConfig().tolerance
    assert default is not None and min(values) < default < max(values)
    assert {SVOOConfig.careful().tolerance, default, SVOOConfig.fast().tolerance} <= {*values}


def test_every_method_with_a_knob_is_swept() -> None:
    names = {row.name for row in available_methods() if row.knob is not None}
    assert {"svoo" if name == OURS else name for name in SWEEPS if name != PAPER} == names


def test_a_sweep_can_be_thinned_to_its_ends() -> None:
    assert _thin((1, 2, 3, 4), 2) == [1, 4]
    assert _thin((1, 2, 3, 4), 9) == [1, 2, 3, 4]


def test_settings_of_a_method_are_one_curve() -> None:
    results = studying.empty()
    names = [f"{PAPER}, mass 0.97", f"{PAPER}, mass 0.6", "svg2, mass 0.9"]
    for name, figures in zip(names, ((35.0, 1.2), (28.0, 2.0), (30.0, 1.5)), strict=True):
        studying.add_runs(results, "tradeoff", "sweeps", **{name: figures})
    found = curves(read_entries(results, "tradeoff"))
    assert set(found) == {PAPER, "svg2"}
    assert [round(quality) for _, quality in found[PAPER]] == [35, 28]  # in the order of the knob
    section = TradeoffStudy().show(results)
    assert section.claims[0].verdict == "holds" and "7.0 dB" in section.claims[0].figure
    assert TradeoffStudy().show(studying.empty()).parts == ()


def test_a_knob_that_changes_nothing_is_one_row_and_said() -> None:
    results = studying.empty()
    runs = {"svg2, mass 0.9": (30.0, 2.0), "svg2, mass 0.6": (25.0, 2.2)}
    runs |= {f"radial, decay {decay}": (33.0, 1.5) for decay in (0.8, 0.2, 0.1)}
    for name, figures in runs.items():
        studying.add_runs(results, "tradeoff", "sweeps", **{name: figures})
    (table,) = (p for p in TradeoffStudy().show(results).parts if isinstance(p, Table))
    assert [row[0].text for row in table.rows] == [*list(runs)[:2], "radial, decay 0.8"]
    assert "radial makes the same videos at 3 values of its decay: one is shown." in table.note


def test_equal_videos_alone_are_not_drawn() -> None:
    results = studying.empty()
    studying.add_run(results, "tradeoff", "sweeps", "svg2, mass 0.9", "p", psnr=None)
    parts = TradeoffStudy().show(results).parts
    assert [type(part) for part in parts] == [Table]
