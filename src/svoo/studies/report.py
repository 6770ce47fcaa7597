"""The report: one HTML page without network and the same as Markdown, from the results alone."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape

from svoo.errors import ConfigError
from svoo.fleet.jobs import describe
from svoo.storage import check_writable, write_atomically
from svoo.studies.base import FIVE, Cell, Claim, Plot, Section, Study, Table, Videos
from svoo.studies.results import Results
from svoo.studies.table import STUDIES

HTML, MARKDOWN = "report.html", "README.md"  # what GitHub and mkdocs show of a folder


@dataclass(frozen=True)
class Chapter:
    """A study and what it shows."""

    study: Study
    section: Section
    skipped: Sequence[str]

    @property
    def tables(self) -> list[Table]:
        """Its tables."""
        return [part for part in self.section.parts if isinstance(part, Table)]


def write_report(results: Results, out: Path) -> list[Claim]:
    """Write the page (`HTML`), its Markdown and the pictures of that into a folder; return the
    claims and their verdicts."""
    check_writable(out / HTML)
    chapters = make_chapters(results)
    if not chapters:
        raise ConfigError(f"the results in {out} hold no study yet; run `svoo study all`")
    claims = order_claims(
        [
            replace(claim, study=chapter.study.name)
            for chapter in chapters
            for claim in chapter.section.claims
        ]
    )
    facts = {
        "about": results.about,
        "sessions": results.sessions(),
        "chapters": chapters,
        "claims": _under_headings(claims),
        "machines": _machines(results),
        "prompts": _prompts(results),
        "settings": _settings(results),
        "sizes": _sizes(results),
    }
    pages = Environment(
        loader=PackageLoader("svoo.studies"),
        autoescape=select_autoescape(),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"embed": _embed, "kind": _kind, "mark": _mark, "anchor": _anchor}
    pages.tests["verdict"] = lambda claim, verdict: claim.verdict == verdict
    for chapter in chapters:
        for part in chapter.section.parts:
            if isinstance(part, Plot):
                write_atomically(out / f"{part.name}.png", part.png)
    markdown = pages.get_template("README.md.jinja").render(**facts)
    write_atomically(out / MARKDOWN, markdown.encode())
    write_atomically(out / HTML, pages.get_template("report.html").render(**facts).encode())
    return claims


def order_claims(found: Sequence[Claim]) -> list[Claim]:
    """Return the paper's five claims, measured or not, then all others."""
    by_text = {claim.text: claim for claim in found}
    five = [
        by_text.get(text)
        or Claim(text, "cannot be told here", f"not measured yet: `svoo study {study}`")
        for text, study in FIVE.items()
    ]
    return five + [claim for claim in found if claim.text not in FIVE]


def _under_headings(claims: Sequence[Claim]) -> dict[str, list[Claim]]:
    """Return claims under the headings that they stand under."""
    found: dict[str, list[Claim]] = {}
    for claim in claims:
        five = "The paper's five claims" if claim.text in FIVE else "What else the paper says"
        found.setdefault(five if claim.of_paper else "Claims of ours", []).append(claim)
    return found


def make_chapters(results: Results) -> list[Chapter]:
    """Return the studies that the results have something of."""
    skipped = results.of_kind("skipped")
    chapters = []
    for study in STUDIES:
        reasons = [
            data["why"]
            for key, data in skipped.items()
            if key.startswith(f"{study.name} | ") and data["why"]
        ]
        try:
            section = study.show(results)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ConfigError(
                f"a row of study {study.name} cannot be read ({describe(error)}): "
                f"results.jsonl was changed, or is of another svoo"
            ) from error
        if section.parts or reasons:
            chapters.append(Chapter(study, section, list(dict.fromkeys(reasons))))
    return chapters


def _machines(results: Results) -> list[str]:
    runs = results.of_kind("run").values()
    return list(dict.fromkeys(run["machine"] for run in runs))


def _prompts(results: Results) -> list[str]:
    """Return the prompts that there are rows of, in the order in which they were given."""
    given = (text for facts in results.sessions() for text in facts.get("prompts", []))
    used = {
        data.get("prompt") or key.partition(" | ")[0]
        for kind in ("run", *(study.name for study in STUDIES))
        for key, data in results.of_kind(kind).items()
    }
    return [text for text in dict.fromkeys(given) if text in used]


def _settings(results: Results) -> dict[str, dict[str, Any]]:
    """Return each method's settings by the name of a row, the latest ones."""
    found: dict[str, dict[str, Any]] = {}
    runs = results.of_kind("run")
    for study in STUDIES:
        for row in results.of_kind(study.name).values():
            if row.get("run") in runs:
                found[f"{study.name}: {row['group']}: {row['setting']}"] = runs[row["run"]][
                    "config"
                ]
    return found


def _sizes(results: Results) -> str:
    """Return the sizes of the videos in words, with their tokens where these are known."""
    tokens = sorted({run["tokens"] for run in results.of_kind("run").values() if run["tokens"]})
    names = dict.fromkeys((results.about["large"], results.about["small"]))
    if len(tokens) != len(names):
        return " and ".join(names)
    pairs = zip(names, reversed(tokens), strict=True)
    return " and ".join(f"{name} ({count:,} tokens)" for name, count in pairs)


def _anchor(study: str) -> str:
    """Return where Markdown pages have a study's heading."""
    title = next(found.title for found in STUDIES if found.name == study)
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")


def _embed(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _kind(part: Table | Plot | Videos) -> str:
    return type(part).__name__.lower()


def _mark(cell: Cell) -> str:
    """Return a cell for Markdown: best in bold, second best underlined."""
    text = cell.text.replace("|", "\\|")
    if not text or not cell.rank:
        return text
    return f"**{text}**" if cell.rank == 1 else f"<u>{text}</u>"
