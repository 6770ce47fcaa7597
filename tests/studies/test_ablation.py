import studying

from svoo.studies.ablation import NO_CO, NO_PROFILE, AblationStudy
from svoo.studies.base import Table
from svoo.studies.settings import PAPER


def test_the_papers_claims_are_judged() -> None:
    results = studying.empty()
    runs = {PAPER: (30.0, 2.0), NO_PROFILE: (31.0, 1.5), NO_CO: (30.5, 2.0)}
    studying.add_runs(results, "ablation", "SVOO as in the paper", **runs)
    section = AblationStudy().show(results)
    assert [claim.verdict for claim in section.claims] == ["holds", "does not hold"]
    assert len(section.parts) == 2
    assert AblationStudy().show(studying.empty()).claims == []


def test_rows_that_differ_by_two_parts_are_named_under_our_table() -> None:
    results = studying.empty()
    for group in ("ours", "SVOO as in the paper"):
        studying.add_runs(results, "ablation", group, one=(30.0, 2.0))
    parts = AblationStudy().show(results).parts
    notes = {part.title: part.note for part in parts if isinstance(part, Table)}
    assert "read them beside" in notes["ours"]
    assert "read them beside" not in notes["SVOO as in the paper"]
