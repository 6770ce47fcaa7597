import studying

from svoo.studies.ablation import NO_CO, NO_PROFILE, AblationStudy
from svoo.studies.settings import PAPER


def test_the_papers_claims_are_judged() -> None:
    results = studying.empty()
    runs = {PAPER: (30.0, 2.0), NO_PROFILE: (31.0, 1.5), NO_CO: (30.5, 2.0)}
    studying.add_runs(results, "ablation", "SVOO as in the paper", **runs)
    section = AblationStudy().show(results)
    assert [claim.verdict for claim in section.claims] == ["holds", "does not hold"]
    assert len(section.parts) == 2
    assert AblationStudy().show(studying.empty()).claims == []
