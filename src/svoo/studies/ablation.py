"""The paper's Fig. 5, and ours: what each part of the method is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from svoo.errors import ConfigError
from svoo.studies.base import TABLES, Claim, Job, Plot, Section, Skipped, Table, Verdict, as_png
from svoo.studies.comparisons import (
    PSNR,
    SPEED_UP,
    Entry,
    difference,
    groups_of,
    make_table,
    read_entries,
    run_jobs,
    say_difference,
    verdict_of,
    where,
)
from svoo.studies.lab import Lab
from svoo.studies.results import Results
from svoo.studies.runs import Setting
from svoo.studies.scatter import scatter
from svoo.studies.settings import OURS, PAPER, changed, our_mode, paper_mode

NO_PROFILE, NO_CO = "w/o offline profile", "w/o co-clustering"
_BY_MASS: dict[str, Any] = {"tolerance": None, "mass": 0.7}
_OURS_WITHOUT: dict[str, dict[str, Any]] = {
    "w/o compensation": {**_BY_MASS, "compensate": False},
    "w/o far field (mean terms)": {**_BY_MASS, "compensate": "mean"},
    "mass and budgets instead of one tolerance": {**_BY_MASS, "compensate": "far"},
    "w/o groups": {"groups": 0},
    "w/o shared branches": {"share_branches": False},
    "co-clusters": {"clustering": "co"},
    "equal-size clusters": {"clustering": "balanced"},
}
_PAPERS = "SVOO as in the paper"  # the group of its rows
_NOTE = (
    "A tolerance needs the far field: the rows without compensation and with mean terms select by "
    "mass and budgets, so read them beside the row that does so with the far field. Rows differ "
    "in density too: compare them by work."
)
_SAID = "in the paper (Fig. 5) it is"


class AblationStudy:
    """Paper mode and ours, each without one of its parts."""

    name = "ablation"
    title = "What each part is worth"
    paper = "Fig. 5"
    about = "The same videos without one part of the method at a time."

    def jobs(self, lab: Lab) -> list[Job]:
        """Return the runs of the paper's variants, then of ours."""
        if not lab.wants("svoo"):
            return []
        paper = changed(lab, paper_mode(lab))
        apart = changed(lab, paper_mode(lab), clustering="kmeans")
        settings = [
            Setting(PAPER, paper),
            Setting(NO_PROFILE, paper, profile=None),
            Setting(NO_CO, apart),
            Setting("w/o both", apart, profile=None),
            Setting("w/o reuse", changed(lab, paper_mode(lab), recluster_every=1)),
        ]
        size, prompts = lab.scale.small, lab.scale.prompts
        jobs = run_jobs(lab, _PAPERS, settings, size, prompts=prompts, turn=TABLES)
        own, skips = [Setting(OURS, changed(lab, our_mode(lab)))], []
        for name, changes in _OURS_WITHOUT.items():
            try:
                own.append(Setting(name, changed(lab, our_mode(lab), **changes)))
            except ConfigError as error:
                skips.append(_skip(name, str(error)))
        jobs += run_jobs(lab, OURS, own, size, prompts=prompts, turn=TABLES)
        return [*jobs, *skips]

    def show(self, results: Results) -> Section:
        """Return a table and a plot for each of the two, and the paper's claims."""
        groups = groups_of(read_entries(results, self.name))
        parts: list[Table | Plot] = []
        for group, entries in groups.items():
            whole, warm_up = (OURS, "no warm-up") if group == OURS else (PAPER, "with warm-up")
            name = "Ours" if group == OURS else group
            title = f"{name}, one part changed ({where(entries)}, {warm_up})"
            note = _NOTE if group == OURS else ""
            table = make_table(title, entries, note=note, minus=whole)
            parts += [table, _draw(title, entries, len(parts))]
        return Section(_claims(groups.get(_PAPERS, [])), parts)


def _skip(name: str, reason: str) -> Job:
    def make() -> dict[str, str]:
        raise Skipped(f"{name}: {reason}")

    return Job(name, make, 0.0, turn=TABLES)


def _draw(title: str, entries: Sequence[Entry], number: int) -> Plot:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    scatter(figure.subplots(), entries)
    return Plot(f"ablation-{number}", title, as_png(figure), "Medians over prompts.")


def _claims(entries: Sequence[Entry]) -> list[Claim]:
    wanted = (
        ("Without the offline profile it is slower", NO_PROFILE, SPEED_UP, "x"),
        ("Without co-clustering it is further from dense", NO_CO, PSNR, " dB"),
    )
    claims = []
    for text, other, column, unit in wanted:
        found = difference(entries, PAPER, other, column)
        if found is not None:
            verdict: Verdict = verdict_of(found)
            figure = f"{where(entries)}: with it {say_difference(found, unit)}"
            claims.append(Claim(text, verdict, figure, said=_SAID))
    return claims
