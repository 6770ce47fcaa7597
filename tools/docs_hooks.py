"""What the documentation site takes from the package itself, so that it is never out of date."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from svoo.catalogue import SEAM_TESTED, models

MODELS, TESTED = "<!-- the catalogue -->", "<!-- tested without a preset -->"


def on_config(config: Any) -> Any:  # noqa: ANN401 (mkdocs' own, without types where it is not installed)
    """List pages that `nav` leaves out under "More", so that none is lost; mkdocs calls this."""
    listed = set(_pages(config["nav"]))
    folder = Path(config["docs_dir"])
    there = sorted(str(page.relative_to(folder)) for page in folder.rglob("*.md"))
    more = [page for page in there if page not in listed]
    if more:
        config["nav"].append({"More": more})
    return config


def _pages(nav: Any) -> Iterator[str]:  # noqa: ANN401 (lists, dictionaries and names, nested)
    if isinstance(nav, str):
        yield nav
        return
    for entry in nav.values() if isinstance(nav, dict) else nav:
        yield from _pages(entry)


def on_page_markdown(markdown: str, **_page: object) -> str:
    """Put tables of the package where a page asks for them; mkdocs calls this for every page."""
    return markdown.replace(MODELS, catalogue_table()).replace(TESTED, tested_table())


def catalogue_table() -> str:
    """Return the models with presets as a table."""
    rows = [
        (
            f"`{model.name}`",
            f"`{model.hub_id}`",
            f"{model.layers} x {model.heads}" + (", two experts" if model.stages == 2 else ""),
            f"{model.width} x {model.height}, {model.frames} frames",
            f"{model.count_tokens(model.frames, model.height, model.width):,}",
            str(model.steps),
        )
        for model in models()
    ]
    return _table(("name", "hub id", "layers x heads", "usual video", "tokens", "steps"), rows)


def tested_table() -> str:
    """Return the pipelines that are tested without having a preset."""
    return _table(("model", "pipeline"), list(SEAM_TESTED.items()))


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
