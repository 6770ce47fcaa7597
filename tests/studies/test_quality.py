import pytest
import studying

from svoo.studies.base import Table
from svoo.studies.quality import QualityStudy
from svoo.studies.settings import OURS, PAPER

OTHERS = {
    "spargeattn": (25.0, 1.4),
    "svg1": (26.0, 1.5),
    "svg2": (28.0, 1.6),
    "radial": (24.0, 1.5),
}


@pytest.mark.parametrize(
    ("paper", "verdict"),
    [
        ((29.0, 1.9), "holds"),
        ((27.0, 1.9), "does not hold"),  # SVG2 is closer to dense
        ((29.0, 1.55), "does not hold"),  # SVG2 is faster
    ],
)
def test_best_of_five_means_closest_and_fastest(paper: tuple[float, float], verdict: str) -> None:
    results = studying.empty()
    group = "text to video, 100 tokens, 20% warm-up"
    studying.add_runs(results, "quality", group, **OTHERS, **{PAPER: paper})
    claim = QualityStudy().show(results).claims[0]
    assert claim.verdict == verdict and "against svg2" in claim.figure


def test_ours_is_judged_without_warm_up() -> None:
    results = studying.empty()
    group = "text to video, 100 tokens, no warm-up"
    studying.add_runs(results, "quality", group, **{PAPER: (22.0, 2.0), OURS: (32.0, 4.0)})
    claims = [claim for claim in QualityStudy().show(results).claims if not claim.of_paper]
    assert [claim.verdict for claim in claims] == ["holds", "holds"]


def test_scores_are_columns_that_say_proxy() -> None:
    results = studying.empty()
    scores = {"subject consistency (proxy)": 0.98, "imaging quality (proxy, BRISQUE)": 20.0}
    studying.add_run(results, "quality", "g", "svg2", "p", scores=scores)
    tables = [part for part in QualityStudy().show(results).parts if isinstance(part, Table)]
    assert "subject consistency (proxy) ↑" in tables[0].columns
    assert "imaging quality (proxy, BRISQUE) ↓" in tables[0].columns


def test_nothing_run_tells_nothing() -> None:
    section = QualityStudy().show(studying.empty())
    assert section.parts == [] and section.claims[0].verdict == "cannot be told here"
