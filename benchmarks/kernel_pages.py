"""What `attention.py` has measured, as a section of docs/figures.md.

    python benchmarks/kernel_pages.py            # fills the section
    python benchmarks/kernel_pages.py --show     # prints it and writes nothing

Nothing is run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pages import as_table, check_section, describe_machine, fill_section

PAGE, SECTION = Path("docs/figures.md"), "attention"
BACKENDS = ("cpp", "blocked")
Row = Mapping[str, Any]


def by_density(rows: Sequence[Row]) -> str:
    """Return dense time over sparse time by tokens and density, and the part of the ideal."""
    densities = sorted({_wanted(row) for row in rows})
    head = [f"{name}, density {density:.2f}" for name in BACKENDS for density in densities]
    lines = [("tokens", *head)]
    for tokens in sorted({row["tokens"] for row in rows}):
        here = {_wanted(row): row for row in rows if row["tokens"] == tokens}
        cells = (
            f"{row['dense_seconds'] / row[f'{name}_seconds']:.1f}x ({row[f'{name}_of_ideal']:.2f})"
            for name in BACKENDS
            for row in (here[density] for density in densities)
        )
        lines.append((f"{tokens:,}", *cells))
    return as_table(*lines)


def _wanted(row: Row) -> float:
    """Return the density that was asked for: blocks are whole, so a plan's own is a little off."""
    return round(float(row["density"]) * 20) / 20


def all_pairs(rows: Sequence[Row]) -> str:
    """Return the kernel's time for all pairs as a share of SDPA's, by head size and block."""
    blocks = sorted({row["block"] for row in rows}, reverse=True)
    lines = [("head size", "products", *(f"blocks of {block}" for block in blocks))]
    for size in sorted({row["size"] for row in rows}):
        here = {row["block"]: row for row in rows if row["size"] == size}
        for products, name in (("float32", "of_dense"), ("bfloat16", "bf16_of_dense")):
            if all(name in row for row in here.values()):
                shares = (f"{here[block][name]:.2f}" for block in blocks)
                lines.append((str(size), products, *shares))
    errors = [row["bf16_error"] for row in rows if "bf16_error" in row]
    text = as_table(*lines)
    if errors:
        text += (
            f"\n\nOutputs with products in bfloat16 are {min(errors):.2%} to {max(errors):.2%} "
            "from those in float32 (random tokens, relative error)."
        )
    return text


def as_page(found: Mapping[str, Any]) -> str:
    """Return the section."""
    rows, memory = found["rows"], found["memory"]
    terms = [
        row[f"{n}_compensated_seconds"] / row[f"{n}_seconds"] for n in BACKENDS for row in rows
    ]
    flex = {name: [row[f"flex_over_{name}"] for row in found["flex"]] for name in BACKENDS}
    than_flex = "; ".join(
        f"{name} {min(times):.1f} to {max(times):.1f}" for name, times in flex.items()
    )
    whole = ", ".join(
        f"{row['dense_seconds'] / row['svoo_seconds']:.1f}x ({row['error']:.1%} off) at "
        f"{row['tokens']:,}"
        for row in found["whole"]
    )
    sizes = ", ".join(
        f"{words} {memory[f'{name}_bytes'] / 2**20:.0f} MiB"
        for words, name in (
            ("a dense call", "dense"),
            ("cpp", "cpp"),
            ("blocked", "blocked"),
            ("the whole method", "svoo"),
            ("a buffer of keys and values", "buffer"),
            ("all pairs would be", "all_pairs"),
        )
    )
    return "\n\n".join(
        (
            f"4 heads of 64, 32 query blocks; {describe_machine(found['machine'])}. Dense SDPA "
            "over sparse; in brackets the part of the ideal 1 / density, which the C++ kernel "
            "passes because it is faster than torch's dense one:",
            by_density(rows),
            f"With mean terms for what is left out a call takes {min(terms):.2f} to "
            f"{max(terms):.2f} times as long. Compiled flex_attention on the same fixed blocks of "
            f"128 takes this many times as long: {than_flex}.",
            "The time for *all* pairs as a share of SDPA's (7,488 tokens, query blocks in random "
            "order):",
            all_pairs(found["all_pairs"]),
            f"**The whole method** with mean terms and measured budgets on clustered tokens, "
            f"clustering included: {whole} tokens.",
            f"**Extra memory** at {memory['tokens']:,} tokens, one head, one thread: {sizes}.",
        )
    )


def main(
    source: Annotated[Path, typer.Argument(help="What attention.py wrote.")] = Path(
        "docs/benchmarks/attention.json"
    ),
    *,
    show: Annotated[bool, typer.Option("--show", help="Print only.")] = False,
) -> None:
    """Fill the section."""
    check_section(PAGE, SECTION)
    text = as_page(json.loads(source.read_text()))
    if show:
        print(text)
    else:
        fill_section(PAGE, SECTION, text)


if __name__ == "__main__":
    typer.run(main)
