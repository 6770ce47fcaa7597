"""What a far-field call computes by the number of tokens, as shares of dense attention: modelled.

    python benchmarks/far_cost.py --kept 660 --growth 0.5 --terms 80

Counts of products and bytes, no times: shares of a GPU's time will differ. `--kept` and `--terms`
are key tokens and terms that a query meets at 7,488 tokens, which the tolerance decides; their
defaults are about what the embedded model has (`benchmarks/far_field.py` prints both for one
call). Key tokens grow with this power of the tokens: from 780 to 14,400 tokens the embedded
model's do about as their root (docs/frontier.md); 0 is the best case.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from svoo.core.cluster_counts import default_clusters, far_fineness
from svoo.core.far_field import heads_per_group
from svoo.core.features import FEATURES

MEASURED = 7_488  # tokens
TOKENS = (MEASURED, 14_400, 32_760, 75_600, 118_800)


def shares(
    tokens: int, counts: tuple[int, int], size: int, kept: int, terms: int, branches: int
) -> dict[str, float]:
    """Return the products of each part of a call over those of dense attention, 2 N^2 D."""
    query, key = counts
    return {
        "pairs": min(1.0, kept / tokens),
        "terms": terms / tokens,
        "centroid pass": query / tokens,
        "labels": (query + key) / tokens * FEATURES / (2 * size) / branches,
        "selection": 3 * query * key / (2 * tokens**2),
    }


def main(
    size: Annotated[int, typer.Option(min=1, help="Head size.")] = 128,
    kept: Annotated[int, typer.Option(min=1, help="Key tokens that a query meets.")] = 660,
    growth: Annotated[float, typer.Option(min=0, max=1, help="Their power of tokens.")] = 0.5,
    terms: Annotated[int, typer.Option(min=0, help="Terms that a query meets.")] = 80,
    branches: Annotated[int, typer.Option(min=1, help="Branches that share labels.")] = 2,
    fineness: Annotated[float | None, typer.Option(help="Instead of what follows tokens.")] = None,
) -> None:
    """Print a row for each number of tokens."""
    names = list(shares(1, (1, 1), size, kept, terms, branches))
    heads = (
        "tokens",
        "clusters",
        "tokens a block",
        *names,
        "in all",
        "V a head, bf16",
        "together",
    )
    table = Table(*heads, title=f"modelled, % of dense, head size {size}, one iteration of labels")
    for tokens in TOKENS:
        counts = default_clusters(tokens, fineness or far_fineness(tokens))
        meets = round(kept * (tokens / MEASURED) ** growth)
        found = shares(tokens, counts, size, meets, terms, branches)
        table.add_row(
            f"{tokens:,}",
            "{} / {}".format(*counts),
            "{:.0f} / {:.0f}".format(*(tokens / count for count in counts)),
            *(f"{100 * share:.2f}" for share in (*found.values(), sum(found.values()))),
            f"{counts[0] * counts[1] * size * 2 / 1e6:,.0f} MB",
            f"{heads_per_group(1, *counts, size, 2)} heads",
        )
    Console(width=150).print(table)


if __name__ == "__main__":
    typer.run(main)
