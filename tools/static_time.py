"""How long a call would take at best and at worst, from what the assembler says.

    python -m tools.static_time --density 0.022 --fill 0.74      # every card, beside dense

An estimate, never a measurement: nothing here has run on a card.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer

from svoo.core.features import FEATURES
from svoo.kernels.triton.tiles import Tile, assignment_tile, attention_tile, far_field_tile

SCHEDULERS = 4  # of a multiprocessor: each starts one instruction of a warp per cycle
EXPONENTIALS = 16  # that a multiprocessor computes per cycle
HEAD = 128
NUMBER = 2  # bytes of a bfloat16


@dataclass(frozen=True)
class Card:
    """A card: multiprocessors, their clock in GHz, bfloat16 operations of one per cycle (sums in
    float32), bytes of memory per second, and the share of the peak that FlashAttention's authors
    published for its architecture (None: they published none)."""

    name: str
    architecture: int
    multiprocessors: int
    clock: float
    operations: int
    bandwidth: float
    flash: float | None

    @property
    def peak(self) -> float:
        """Operations per second."""
        return self.multiprocessors * self.clock * 1e9 * self.operations


CARDS = (
    Card("A100", 80, 108, 1.41, 2048, 2.04e12, 0.73),  # FlashAttention-2, arXiv 2307.08691
    Card("RTX 3090", 86, 82, 1.70, 512, 0.94e12, None),
    Card("RTX 4090", 89, 128, 2.52, 512, 1.01e12, None),
    Card("H100 SXM", 90, 132, 1.83, 4096, 3.35e12, 0.75),  # FlashAttention-3, arXiv 2407.08608
    Card("B200", 100, 148, 1.85, 8192, 8.0e12, 0.71),  # FlashAttention-4, 1,613 TFLOP/s
    Card("RTX 5090", 120, 170, 2.41, 512, 1.79e12, None),
)


@dataclass(frozen=True)
class Work:
    """What a call of one head has to do: tiles of kept keys and of terms, tiles of the far-field
    pass (64 columns each), blocks of both sides, tokens."""

    kept_tiles: float
    term_tiles: float
    far_tiles: float
    query_blocks: int
    key_blocks: int
    tokens: int
    iterations: int = 1


@dataclass(frozen=True)
class Estimate:
    """Milliseconds: `least` if tensor cores, instructions and exponentials overlap entirely, and
    `most` if they do not overlap at all; both with the memory's time added."""

    least: float
    most: float


def tile_cycles(tile: Tile, instructions: int, card: Card) -> tuple[float, float]:
    """Return the cycles of one multiprocessor for a tile of attention: all at once, one after the
    other."""
    area = tile.rows * tile.columns
    tensor = 4 * area * HEAD / card.operations
    issue = instructions * tile.warps / SCHEDULERS
    parts = tensor, issue, area / EXPONENTIALS
    return max(parts), tensor + issue  # exponentials are among the instructions


def dense_milliseconds(card: Card, tokens: int, heads: int) -> float | None:
    """Return the time of dense attention at FlashAttention's published rate."""
    if card.flash is None:
        return None
    return 1e3 * 4 * heads * tokens**2 * HEAD / (card.flash * card.peak)


def estimate(work: Work, card: Card, heads: int, rows: Sequence[Mapping[str, Any]]) -> Estimate:
    """Return the time of a call with far-field terms; rows are those of the kernel report."""
    known = {row["name"]: row for row in rows if row["arch"] == f"sm_{card.architecture}"}

    def cycles(name: str, tile: Tile, tiles: float) -> tuple[float, float]:
        best, worst = tile_cycles(tile, known[name]["instructions"], card)
        return best * tiles, worst * tiles

    attention = attention_tile(card.architecture, torch.bfloat16)
    far = far_field_tile(card.architecture, torch.bfloat16)
    features = assignment_tile(card.architecture, torch.float32, FEATURES)
    rounds = -(-work.tokens // features.rows) * (
        -(-work.query_blocks // features.columns) + -(-work.key_blocks // features.columns)
    )
    assign = known["assign, features"]["instructions"] * features.warps / SCHEDULERS
    assigning = assign * rounds * work.iterations
    parts = [
        cycles("attention, far terms and groups", attention, work.kept_tiles + work.term_tiles),
        cycles("far field", far, work.far_tiles),
        (assigning, assigning),
    ]
    tokens = work.tokens * HEAD * NUMBER
    seen = work.query_blocks * work.key_blocks * HEAD * NUMBER
    # Features read all three sides, moments twice; V is written, measured, and read.
    memory = heads * (9 * tokens + 3 * seen) / card.bandwidth
    per_second = card.multiprocessors * card.clock * 1e9
    least, most = (heads * sum(part[end] for part in parts) / per_second for end in range(2))
    return Estimate(1e3 * (least + memory), 1e3 * (most + memory))


def work_of(
    density: float,
    fill: float,
    clusters: tuple[int, int],
    tokens: int,
    tile: Tile,
    term_share: float,
) -> Work:
    """Return the work of a head that keeps a density of the pairs in tiles filled so far, and has
    terms for a share of the key blocks."""
    rows = tokens / tile.rows + clusters[0] / 2  # half a tile is lost for each query block
    return Work(
        kept_tiles=density * tokens**2 / (fill * tile.rows * tile.columns),
        term_tiles=rows * (math.ceil(term_share * clusters[1] / tile.columns) + 16 / tile.columns),
        far_tiles=math.ceil(clusters[0] / tile.rows) * (tokens / tile.columns + clusters[1] / 2),
        query_blocks=clusters[0],
        key_blocks=clusters[1],
        tokens=tokens,
    )


def main(
    *,
    density: Annotated[float, typer.Option(min=0, max=1, help="Share of pairs kept.")] = 0.022,
    fill: Annotated[float, typer.Option(min=0.01, max=1, help="How full tiles are.")] = 0.74,
    terms: Annotated[float, typer.Option(min=0, max=1, help="Key blocks with a term.")] = 0.33,
) -> None:
    """Print the estimate for a call on 75,600 tokens and 40 heads with 256 x 1024 clusters."""
    from tools.kernel_report import HEADS, KEY_CLUSTERS, QUERY_CLUSTERS, TOKENS, report

    found = report(everything=False)["kernels"]
    typer.echo("| card | dense at FlashAttention's published rate, ms | sparse, estimated, ms |")
    typer.echo("|---|---|---|")
    for card in CARDS:
        tile = attention_tile(card.architecture, torch.bfloat16)
        clusters = QUERY_CLUSTERS, KEY_CLUSTERS
        work = work_of(density, fill, clusters, TOKENS, tile, terms)
        sparse = estimate(work, card, HEADS, found)
        dense = dense_milliseconds(card, TOKENS, HEADS)
        told = "none published" if dense is None else f"{dense:.0f}"
        typer.echo(f"| {card.name} | {told} | {sparse.least:.1f} - {sparse.most:.1f} |")


if __name__ == "__main__":
    typer.run(main)
