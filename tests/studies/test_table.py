import pytest

from svoo.errors import ConfigError
from svoo.studies.table import STUDIES, find_studies


def test_all_eleven_studies_are_there_once() -> None:
    names = {study.name for study in STUDIES}
    assert names == {
        "quality", "layers", "steps", "coupling", "ablation", "tradeoff", "reuse", "recall",
        "theorem", "examples", "seeds",
    }  # fmt: skip
    assert len(STUDIES) == len(names)
    assert all(study.title and study.paper and study.about for study in STUDIES)


def test_studies_are_found_by_name_in_the_reports_order() -> None:
    assert find_studies(["all"]) == list(STUDIES)
    assert [study.name for study in find_studies(["seeds", "layers"])] == ["layers", "seeds"]
    with pytest.raises(ConfigError, match="no study called 'layer'; there are all, layers"):
        find_studies(["layer"])
