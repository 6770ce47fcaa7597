"""Co-clustering in inner-product form against the affinity-matrix form of the paper, and k-means,
on the CPU.

python benchmarks/clustering.py --out out/benchmarks
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from harness import interleave, plot_growth, save
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

from svoo import co_cluster, select_blocks
from svoo.core.cluster_counts import default_clusters
from svoo.core.clustering import Implementation
from svoo.core.kmeans import k_means
from svoo.core.random import seeded
from svoo.core.selection import coarse_mass

HEAD_SIZE = 128
IMPLEMENTATIONS: tuple[Implementation, ...] = ("cpp", "torch")


def affinity_form(
    query: Tensor, key: Tensor, start: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """One iteration of Algorithm 1 with its affinity matrices, as fast as plain torch does it:
    (query labels, key labels)."""
    query_side, key_side = start
    seen = normalize(key_side @ query_side.mT, dim=-1)
    key_labels = (normalize(key @ query_side.mT, dim=-1) @ seen.mT).max(dim=-1).indices
    key_side = means(key, key_labels, key_side)
    seen = normalize(query_side @ key_side.mT, dim=-1)
    query_labels = (normalize(query @ key_side.mT, dim=-1) @ seen.mT).max(dim=-1).indices
    means(query, query_labels, query_side)
    return query_labels, key_labels


def means(tokens: Tensor, labels: Tensor, old: Tensor) -> Tensor:
    """Return the mean of each label's tokens; a label without any keeps its old centroid."""
    new = old.clone()
    for batch, head in torch.cartesian_prod(*map(torch.arange, labels.shape[:2])).tolist():
        place = labels[batch, head]
        sums = torch.zeros_like(old[batch, head]).index_add_(0, place, tokens[batch, head])
        sizes = place.bincount(minlength=len(sums)).unsqueeze(-1)
        new[batch, head] = torch.where(sizes > 0, sums / sizes.clamp(min=1), old[batch, head])
    return new


def check_labels(tokens: int) -> None:
    """The gate: in float64 both forms give the same labels, and in float32 nearly all of them;
    k-means takes the nearest centroids, and selection keeps what plain Python does."""
    query, key = (
        torch.randn(1, 1, tokens, HEAD_SIZE, dtype=torch.float64, generator=seeded(i))
        for i in (0, 1)
    )
    start = query[:, :, :256], key[:, :, :1024]
    clusters = co_cluster(query, key, 256, 1024, iterations=1, initial=start)
    query_labels, key_labels = affinity_form(query, key, start)
    same = torch.equal(clusters.query.labels, query_labels) and torch.equal(
        clusters.key.labels, key_labels
    )
    if not same:
        raise SystemExit("the two forms give different labels: nothing timed")
    for name in IMPLEMENTATIONS:
        rounded = co_cluster(
            query.float(), key.float(), 256, 1024, iterations=1, initial=start, implementation=name
        )
        sides = (rounded.key.labels, key_labels), (rounded.query.labels, query_labels)
        agreement = min(float((one == other).float().mean()) for one, other in sides)
        if agreement < 0.999:
            raise SystemExit(f"{name}: {agreement:.2%} of the labels are right: nothing timed")
    groups = k_means(query, key, 256, 1024, iterations=1, initial=start)
    for side, rows, centres in zip((groups.query, groups.key), (query, key), start, strict=True):
        if not torch.equal(side.labels, torch.cdist(rows, centres).argmin(dim=-1)):
            raise SystemExit("k-means does not take the nearest centroids: nothing timed")
    keep, coarse = select_blocks(clusters, mass=0.9), coarse_mass(clusters)
    kept, without_last = (coarse * keep).sum(dim=-1), coarse.masked_fill(~keep, 2).amin(dim=-1)
    if not bool(((kept >= 0.9) & (kept - without_last < 0.9)).all()):
        raise SystemExit("selection does not keep the fewest blocks: nothing timed")


def compare(tokens: int, repeats: int) -> dict[str, Any]:
    """Time one iteration with 256 / 1024 clusters, and two with clusters by token count beside
    dense attention."""
    query, key = (torch.randn(1, 1, tokens, HEAD_SIZE, generator=seeded(i)) for i in (0, 1))
    start = query[:, :, :256], key[:, :, :1024]
    counts = default_clusters(tokens)

    def plan() -> Tensor:
        clusters = co_cluster(query, key, *counts, check=False)
        return select_blocks(clusters, torch.tensor([0.2]), check=False)

    row = interleave(
        {
            **{
                name: partial(
                    co_cluster,
                    query,
                    key,
                    256,
                    1024,
                    iterations=1,
                    initial=start,
                    check=False,
                    implementation=name,
                )
                for name in IMPLEMENTATIONS
            },
            "affinity": lambda: affinity_form(query, key, start),
            "kmeans": lambda: k_means(
                query, key, 256, 1024, iterations=1, initial=start, check=False
            ),
            "by_tokens": plan,
            "dense": lambda: scaled_dot_product_attention(query, key, key),
        },
        repeats,
    )
    return {
        "tokens": tokens,
        **{f"{name}_seconds": seconds for name, seconds in row.items()},
        **{f"affinity_over_{name}": row["affinity"] / row[name] for name in IMPLEMENTATIONS},
        "by_tokens_of_dense": row["by_tokens"] / row["dense"],
    }


def main(
    out: Annotated[Path, typer.Option(help="Where JSON and plots go.")] = Path("out/benchmarks"),
    tokens: Annotated[list[int] | None, typer.Option(help="Token counts (repeatable).")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 7,
) -> None:
    """Compare the forms; keep the machine idle."""
    counts = tokens or [4096, 8192, 16384, 32768]
    check_labels(min(16_384, max(counts)))
    rows = [compare(count, repeats) for count in counts]
    table = Table(
        title=f"milliseconds of one iteration, one head of {HEAD_SIZE}, 256 / 1024 clusters"
    )
    for name in (
        "tokens",
        *IMPLEMENTATIONS,
        "affinity",
        *(f"affinity / {name}" for name in IMPLEMENTATIONS),
        "k-means",
        "2 iterations + selection, of dense",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            f"{row['tokens']:,}",
            *(f"{1e3 * row[f'{name}_seconds']:.1f}" for name in (*IMPLEMENTATIONS, "affinity")),
            *(f"{row[f'affinity_over_{name}']:.2f}x" for name in IMPLEMENTATIONS),
            f"{1e3 * row['kmeans_seconds']:.1f}",
            f"{row['by_tokens_of_dense']:.1%}",
        )
    console = Console()
    console.print(table)
    path = save(out, "clustering", rows)
    curves = {
        **{
            f"inner-product form, {name}": [
                (row["tokens"], row[f"{name}_seconds"]) for row in rows
            ]
            for name in IMPLEMENTATIONS
        },
        "affinity-matrix form": [(row["tokens"], row["affinity_seconds"]) for row in rows],
        "k-means": [(row["tokens"], row["kmeans_seconds"]) for row in rows],
        "dense attention": [(row["tokens"], row["dense_seconds"]) for row in rows],
    }
    plot_growth(
        path.with_suffix(".png"),
        curves,
        "One iteration, 256 / 1024 clusters, head size 128",
        "seconds",
    )
    console.print(f"{path} and {path.with_suffix('.png').name} written")


if __name__ == "__main__":
    typer.run(main)
