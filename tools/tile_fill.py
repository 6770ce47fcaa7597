"""How full the GPU kernels' tiles are, and what that costs: ragged clusters against equal ones.

    python -m tools.tile_fill          # the embedded model's tokens, and random ones; minutes

Labels are made of the embedded model's tokens at its usual size, and the sizes of their clusters
are scaled up to 75,600 tokens: as many clusters, each as many times larger. Fill is the share of
the computed tiles that is kept pairs. Milliseconds are static estimates for 40 heads
(`static_time`), at the tolerance where each choice errs as the first one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, ClassVar

import torch
import typer
from rich.progress import track
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import svoo
from svoo.core.far_plan import plan_far_field
from svoo.core.features import equal_labels, k_means_labels
from svoo.core.random import seeded
from svoo.core.sorting import sort_sides
from svoo.core.terms import FarTerms
from svoo.kernels.triton.ranges import PIECE
from svoo.kernels.triton.tiles import Tile, attention_tile
from tools.kernel_report import TOKENS, report
from tools.static_time import CARDS, Work, estimate

HEADS = 40
TOLERANCES = (0.016, 0.008, 0.004, 0.002, 0.001)
TARGET = 0.004  # whose error, with the first choice, all others have to reach
RAGGED = ((128, 512), (224, 896), (256, 1024), (256, 2048), (512, 1024), (512, 2048))
EQUAL = ((256, 64), (128, 64))  # queries and keys in a cluster at full size
Tokens = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class WatchConfig(svoo.MethodConfig):
    """Keeps the tokens of a step in the layers at some parts of the way through the model, and
    computes densely."""

    name: ClassVar[str] = "watch"
    parts: tuple[float, ...] = (0.4, 0.8)
    step: int = 1
    seen: list[Tokens] = field(default_factory=list)

    def start(self, run: svoo.Run) -> svoo.Method:
        """Return the method, which knows its layers."""
        return Watch(self, {int(part * run.layers) for part in self.parts})


@dataclass
class Watch:
    """The method of `WatchConfig`."""

    config: WatchConfig
    layers: set[int]
    state_bytes: int = 0

    def plan(
        self, query: Tensor, key: Tensor, value: Tensor, call: svoo.Call
    ) -> svoo.methods.base.Dense:
        """Keep the tokens and decide for dense."""
        if call.step == self.config.step and call.layer in self.layers:
            self.config.seen.append((query[:1].clone(), key[:1].clone(), value[:1].clone()))
        return svoo.methods.base.Dense("tokens are only looked at", planned=True)


@dataclass(frozen=True)
class Tiles:
    """Tiles of one head at full size, and how full the rows, the columns and both are."""

    work: Work
    rows: float
    columns: float
    fill: float


def embedded_tokens() -> list[Tokens]:
    """Return tokens of the embedded model at its usual size, of the first branch."""
    from svoo.mini.pipeline import load

    pipe = load()
    config = WatchConfig()
    with svoo.apply(pipe, config):
        generator = torch.Generator().manual_seed(0)
        pipe(
            "a red circle moves left over a checkered floor",
            num_inference_steps=2,
            guidance_scale=1.0,
            generator=generator,
            output_type="latent",
        )
    return config.seen


def random_like(tokens: Sequence[Tokens]) -> list[Tokens]:
    """Return tokens without any structure, of the same shape as a layer's."""
    shape = tokens[0][0].shape
    query, key, value = (torch.randn(shape, generator=seeded(seed)) for seed in range(3))
    return [(query, key, value)]


def count_tiles(
    plan: svoo.BlockPlan,
    tile: Tile,
    equal: tuple[int, int] | None = None,
    tokens: int = TOKENS,
) -> Tiles:
    """Count the tiles of a plan whose blocks are scaled up to so many tokens: means per head.

    `equal`: all blocks have these sizes there.
    """
    factor = tokens / plan.query_sizes.sum(dim=-1)[0, 0]
    queries, keys = (
        (sizes * factor).round().flatten(0, 1) for sizes in (plan.query_sizes, plan.key_sizes)
    )
    if equal is not None:
        queries, keys = torch.full_like(queries, equal[0]), torch.full_like(keys, equal[1])
    keep = plan.keep.flatten(0, 1).double()
    assert isinstance(plan.terms, FarTerms)
    terms = plan.terms.middle.flatten(0, 1).double().sum(dim=-1)  # [P, Cq]
    row_tiles = (queries / tile.rows).ceil().double()
    lanes = (keep @ ((keys / PIECE).ceil() * PIECE).double().unsqueeze(-1)).squeeze(-1)
    column_tiles = (lanes / tile.columns).ceil()
    kept = (keep @ keys.double().unsqueeze(-1)).squeeze(-1)
    pairs = (queries * kept).sum()
    computed = (row_tiles * column_tiles).sum() * tile.rows * tile.columns
    groups = plan.terms.groups
    group_tiles = 0.0 if groups is None else 16 / tile.columns
    heads = len(keep)
    far = -(-keep.shape[1] // tile.rows) * (keys / tile.columns).ceil().sum()
    work = Work(
        kept_tiles=float((row_tiles * column_tiles).sum() / heads),
        term_tiles=float(
            (row_tiles * ((terms / tile.columns).ceil() + group_tiles)).sum() / heads
        ),
        far_tiles=float(far / heads),
        query_blocks=keep.shape[1],
        key_blocks=keep.shape[2],
        tokens=tokens,
    )
    return Tiles(
        work,
        rows=float(queries.sum() / (row_tiles * tile.rows).sum()),
        columns=float((queries * kept).sum() / (queries * column_tiles * tile.columns).sum()),
        fill=float(pairs / computed),
    )


@dataclass(frozen=True)
class Point:
    """One choice at one tolerance: relative error of the output, density, tiles."""

    error: float
    density: float
    tiles: Tiles


def measure(
    tokens: Sequence[Tokens], kind: str, counts: tuple[int, int], tile: Tile
) -> list[Point]:
    """Return a choice of clusters at every tolerance: the mean over layers."""
    points: list[list[Point]] = []
    for query, key, value in tokens:
        length = query.shape[2]
        equal = counts if kind == "equal" else None
        own = counts
        if equal is not None:  # as many clusters as there are at full size, nearly
            sizes = [-(-length // -(-TOKENS // size)) for size in equal]
            own = -(-length // sizes[0]), -(-length // sizes[1])
            labels = equal_labels(query, key, value, *own)
        else:
            labels = k_means_labels(query, key, value, *own, iterations=2)
        sides = sort_sides(labels, own)
        dense = scaled_dot_product_attention(query, key, value)
        row = []
        for tolerance in TOLERANCES:
            plan = plan_far_field(query, key, value, *sides, tolerance=tolerance)
            apart = svoo.run_plan(query, key, value, plan) - dense
            error = float(apart.norm() / dense.norm())
            row.append(Point(error, float(plan.density().mean()), count_tiles(plan, tile, equal)))
        points.append(row)
    return [_mean(column) for column in zip(*points, strict=True)]


def _mean(points: Sequence[Point]) -> Point:
    def over(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    tiles = [point.tiles for point in points]
    works = [each.work for each in tiles]
    work = replace(
        works[0],
        kept_tiles=over([each.kept_tiles for each in works]),
        term_tiles=over([each.term_tiles for each in works]),
        far_tiles=over([each.far_tiles for each in works]),
    )
    mean = Tiles(
        work, *(over([getattr(each, n) for each in tiles]) for n in ("rows", "columns", "fill"))
    )
    return Point(over([p.error for p in points]), over([p.density for p in points]), mean)


def at_error(points: Sequence[Point], error: float) -> tuple[float, Point] | None:
    """Return how far between which points an error lies: the share of the way, the point before;
    None outside of them."""
    for before, after in pairwise(points):
        if after.error <= error <= before.error:
            span = before.error - after.error
            return ((before.error - error) / span if span else 0.0), before
    return None


def main(
    *,
    card: Annotated[str, typer.Option(help="A card of tools.static_time.")] = "H100 SXM",
) -> None:
    """Print the fill of tiles and the estimated time at equal error for several choices."""
    names = {each.name: each for each in CARDS}
    if card not in names:
        raise typer.BadParameter(f"no card called {card!r}; there are {', '.join(names)}")
    rows = report(everything=False)["kernels"]
    tile = attention_tile(names[card].architecture, torch.bfloat16)
    choices = [*(("ragged", counts) for counts in RAGGED), *(("equal", c) for c in EQUAL)]
    embedded = embedded_tokens()
    for title, tokens in (("embedded model", embedded), ("random", random_like(embedded))):
        made_of = "{1} heads of {2:,} tokens, size {3}".format(*tokens[0][0].shape)
        typer.echo(f"\n{title}, {len(tokens)} layers of {made_of}; scaled up to {TOKENS:,} tokens")
        typer.echo(f"{card}, {HEADS} heads; ms are estimates\n")
        typer.echo("| clusters | rows | columns | fill | error | density | ms at equal error |")
        typer.echo("|---|---|---|---|---|---|---|")
        wanted = None
        for kind, counts in track(choices, description=title, transient=True):
            points = measure(tokens, kind, counts, tile)
            own = points[TOLERANCES.index(TARGET)]
            wanted = own.error if wanted is None else wanted
            times = [estimate(point.tiles.work, names[card], HEADS, rows) for point in points]
            found = at_error(points, wanted)
            cost = "-"
            if found is not None:
                share, before = found
                index = points.index(before)
                least, most = (
                    (1 - share) * getattr(times[index], end)
                    + share * getattr(times[index + 1], end)
                    for end in ("least", "most")
                )
                cost = f"{least:.1f} - {most:.1f}"
            what = "blocks of" if kind == "equal" else "ragged,"
            typer.echo(
                f"| {what} {counts[0]} x {counts[1]} | {own.tiles.rows:.2f} | "
                f"{own.tiles.columns:.2f} | {own.tiles.fill:.2f} | {own.error:.4f} | "
                f"{own.density:.4f} | {cost} |"
            )


if __name__ == "__main__":
    typer.run(main)
