"""The studies, in the order of the report."""

from __future__ import annotations

from collections.abc import Sequence

from svoo.errors import ConfigError
from svoo.studies.ablation import AblationStudy
from svoo.studies.base import Study
from svoo.studies.coupling import CouplingStudy
from svoo.studies.examples import ExamplesStudy
from svoo.studies.layers import LayersStudy
from svoo.studies.quality import QualityStudy
from svoo.studies.recall import RecallStudy
from svoo.studies.reuse import ReuseStudy
from svoo.studies.seeds import SeedsStudy
from svoo.studies.steps import StepsStudy
from svoo.studies.theorem import TheoremStudy
from svoo.studies.tradeoff import TradeoffStudy

STUDIES: tuple[Study, ...] = (
    LayersStudy(),
    CouplingStudy(),
    RecallStudy(),
    QualityStudy(),
    ExamplesStudy(),
    TradeoffStudy(),
    AblationStudy(),
    ReuseStudy(),
    StepsStudy(),
    TheoremStudy(),
    SeedsStudy(),
)


def find_studies(names: Sequence[str]) -> list[Study]:
    """Return studies by name, "all" for every one; refuse a name that there is not."""
    known = {study.name: study for study in STUDIES}
    for name in names:
        if name != "all" and name not in known:
            raise ConfigError(f"no study called {name!r}; there are all, {', '.join(known)}")
    if not names or "all" in names:
        return list(STUDIES)
    return [study for study in STUDIES if study.name in names]
