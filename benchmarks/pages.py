"""Sections of pages that commands fill: what stands between two markers of a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from svoo.storage import write_atomically


def check_section(page: Path, name: str) -> tuple[str, str]:
    """Return the page's markers of that name; end the program if it does not have both, once."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    text = page.read_text()
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise SystemExit(f"{page} has no section {begin} .. {end}")
    return begin, end


def fill_section(page: Path, name: str, text: str) -> None:
    """Put a text between the page's markers of that name, instead of what was there."""
    begin, end = check_section(page, name)
    before, rest = page.read_text().split(begin)
    write_atomically(page, f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}".encode())


def as_table(*rows: tuple[str, ...]) -> str:
    """Return rows, the first of them the head, as a table in Markdown."""
    head, *rest = (f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
    return "\n".join((head, "|" + "---|" * len(rows[0]), *rest))


def describe_machine(machine: dict[str, object]) -> str:
    """Return a benchmark's machine in a sentence's part."""
    return (
        f"{machine['threads']} threads of {machine['processor']}, {machine['instructions']}, "
        f"torch {machine['torch']}, commit {machine['commit']}"
    )


def made_on(machine: Mapping[str, object], rows: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Return the machine of a file, with the processors and commits of the rows that are used: a
    file that was gone on with may have several."""
    found = dict(machine)
    for name in ("processor", "commit"):
        known = dict.fromkeys(row[name] for row in rows if name in row)
        if known:
            found[name] = " and ".join(known)
    return found


def describe_runs(tokens: int, steps: int, prompts: int, machine: dict[str, object]) -> str:
    """Return what a table's figures are of."""
    return (
        f"The embedded model, {steps} steps, {tokens:,} tokens; medians of {prompts} held-out "
        f"prompts, the least PSNR of them in brackets; {describe_machine(machine)}."
    )
