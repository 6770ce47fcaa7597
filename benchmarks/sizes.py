"""One setting at several sizes side by side, from what `frontier.py` has measured.

    python benchmarks/sizes.py docs/benchmarks/size780.json docs/benchmarks/size2340.json ...

Prints the table; `--into docs/frontier.md` also writes it there, between its two markers. Nothing
is run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from svoo.catalogue import find_model
from svoo.storage import write_atomically

BEGIN, END = "<!-- sizes: made by benchmarks/sizes.py -->", "<!-- sizes: end -->"
HEADER = (
    "| tokens | setting | prompts | density | keys a query | PSNR | attention, share of dense "
    "| loop |"
)


def make_table(files: Sequence[dict[str, Any]], only: Sequence[str] = ()) -> str:
    """Return the table of the rows of JSON files, by tokens and then by setting, in Markdown."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in (row for file in files for row in file["rows"]):
        tokens = find_model("mini").count_tokens(row["frames"], row["height"], row["width"])
        if not only or row["setting"] in only:
            groups.setdefault((tokens, row["setting"]), []).append(row)
    lines = [HEADER, "|" + "---|" * 8]
    for (tokens, setting), rows in sorted(groups.items(), key=lambda item: item[0][0]):
        found = {
            name: median(row[name] for row in rows)
            for name in ("density", "psnr", "attention_speed_up", "speed_up")
        }
        least = min(row["psnr"] for row in rows)
        lines.append(
            f"| {tokens:,} | {setting} | {len(rows)} | {found['density']:.3f} "
            f"| {found['density'] * tokens:.0f} | {found['psnr']:.1f} ({least:.1f}) dB "
            f"| {100 / found['attention_speed_up']:.1f} % | {found['speed_up']:.2f}x |"
        )
    return "\n".join(lines)


def put_between(text: str, table: str) -> str:
    """Return the text with the table between the two markers; refuse a text without them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"no place for the table: it goes between {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main(
    files: Annotated[list[Path], typer.Argument(help="JSON files that frontier.py wrote.")],
    only: Annotated[list[str] | None, typer.Option(help="A setting; may be repeated.")] = None,
    into: Annotated[Path | None, typer.Option(help="A page that has the markers.")] = None,
) -> None:
    """Print the table; write it into a page."""
    table = make_table([json.loads(path.read_text()) for path in files], only or ())
    print(table)
    if into is not None:
        write_atomically(into, put_between(into.read_text(), table).encode())


if __name__ == "__main__":
    typer.run(main)
