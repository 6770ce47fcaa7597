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
    ours, paper = (title for title in notes)
    assert ours == "Ours, one part changed (100 tokens, no warm-up)"
    assert paper == "SVOO as in the paper, one part changed (100 tokens, with warm-up)"
    assert "read them beside" in notes[ours] and "read them beside" not in notes[paper]


def test_parts_are_compared_with_the_whole_by_prompt() -> None:
    results = studying.empty()
    studying.add_runs(results, "ablation", "ours", ours=(30.0, 2.0), other=(25.0, 2.0))
    table = AblationStudy().show(results).parts[0]
    assert isinstance(table, Table) and table.columns[1] == "minus ours, dB"
    assert table.rows[1][1].text.startswith("-5.00")
