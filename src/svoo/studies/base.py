"""What a study is, and what it puts on the report's page."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from svoo.plugin.provenance import hash_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from svoo.studies.lab import Lab
    from svoo.studies.results import Results
    from svoo.studies.scale import Size

Verdict = Literal["holds", "does not hold", "cannot be told here"]
# Turns: what matters most for its time is made first, so that a run in slices has it early. The
# measurements behind the paper's claims, the main methods at the smaller size, at the larger one,
# without warm-up, all other tables, the sweeps.
CLAIMS, FIRST, MAIN, BARE, TABLES, LAST = range(6)

# The paper's five claims: a report names all of them, measured or not.
LAYERS_DIFFER = "Layers differ in how much attention they need"
INPUTS_ARE_ALIKE = "Inputs do not matter for a layer"
COUPLING_MATTERS = "Coupling matters: the best partition of the keys depends on the query"
MORE_RECALL = "Co-clustering has more recall than SVG2's k-means at equal density"
BEST_OF_FIVE = "SVOO is best among the five: closest to dense and fastest"
FIVE = {
    LAYERS_DIFFER: "layers",
    INPUTS_ARE_ALIKE: "layers",
    COUPLING_MATTERS: "coupling",
    MORE_RECALL: "recall",
    BEST_OF_FIVE: "quality",
}


class Skipped(Exception):
    """This part of a study cannot be made here; the text says why."""


@dataclass(frozen=True)
class Job:
    """One unit of work, whose result is one line of the file. `key` names all that decides it;
    `cost` is about how many dense runs of the smallest size it takes; `prompt` that of its input,
    if it has one. Jobs of an earlier `turn` come first, whatever study they belong to, and in a
    turn those of an earlier prompt. `scored`: its run is to have LPIPS and scores where these can
    be had."""

    key: str
    make: Callable[[], Mapping[str, Any]]
    cost: float = 1.0
    prompt: str = ""
    turn: int = CLAIMS
    scored: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim of the paper (or of ours), its verdict, and the figure that says so. `said` is what
    the paper found itself, where it has figures; `study` whose claim it is (the report knows)."""

    text: str
    verdict: Verdict
    figure: str
    of_paper: bool = True
    said: str = ""
    study: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell of a table: its text, and 1 for the best of its column, 2 for the second best."""

    text: str
    rank: Literal[0, 1, 2] = 0


@dataclass(frozen=True)
class Table:
    """A table; `note` says how to read it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True)
class Plot:
    """A picture as PNG bytes, with what it shows in words."""

    name: str
    title: str
    png: bytes
    note: str = ""


@dataclass(frozen=True)
class Videos:
    """Videos (mp4 bytes by name) of one prompt that play together."""

    title: str
    videos: Mapping[str, bytes]


@dataclass(frozen=True)
class Section:
    """What a study shows."""

    claims: Sequence[Claim] = ()
    parts: Sequence[Table | Plot | Videos] = ()
    notes: Sequence[str] = field(default=())


class Study(Protocol):
    """One table or figure of the paper: what to measure, and how it is shown."""

    @property
    def name(self) -> str:
        """Its name on the command line."""

    @property
    def title(self) -> str:
        """Its heading."""

    @property
    def paper(self) -> str:
        """Where the paper has it."""

    @property
    def about(self) -> str:
        """What it shows, in a sentence."""

    def jobs(self, lab: Lab) -> Sequence[Job]:
        """Return all that is to be made, in order; what is made already is not run again."""

    def show(self, results: Results) -> Section:
        """Return what the results of a file say."""


def per_input(
    lab: Lab,
    size: Size,
    make: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    prompts: int | None = None,
    *,
    turn: int = CLAIMS,
    **settings: Any,  # noqa: ANN401 (what JSON can hold)
) -> list[Job]:
    """Return one job per input (or for the first few): `make(input)`, which takes about as long
    as a dense run. `settings`: what else decides the result."""
    jobs = []
    for entry in lab.inputs[:prompts]:
        facts = {"input": lab.input_facts(entry), "size": str(size), "steps": lab.scale.steps}
        facts |= settings
        key = f"{entry['prompt']} | {hash_settings(facts)}"
        cost = lab.scale.cost(size)
        jobs.append(Job(key, partial(make, entry), cost, entry["prompt"], turn))
    return jobs


def as_png(figure: Figure) -> bytes:
    """Return a figure as a PNG."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()
