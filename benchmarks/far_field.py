"""The parts of a far-field call on the CPU, as shares of dense SDPA.

    python benchmarks/far_field.py --out out/benchmarks           # 7,488 tokens, 4 heads of 32
    python benchmarks/far_field.py --size 64 --heads 2            # the same products, other heads

Labels, sort and moments, centroid pass, selection, kept rows and terms; nothing is timed before
the C++ forms agree with the torch ones. Also the most memory that planning holds, of which V is
the largest part.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from harness import Call, allocated_memory, gate, interleave, save
from rich.console import Console
from rich.table import Table
from synthetic import clustered_tokens
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo import FarTerms, run_plan
from svoo.core.clustering import from_sorted
from svoo.core.far_field import see_blocks as by_definition
from svoo.core.far_plan import plan_far_field
from svoo.core.features import k_means_labels
from svoo.core.plan import BlockPlan
from svoo.core.random import seeded
from svoo.core.sorting import SortedLabels, sort_sides
from svoo.kernels.cpp.far_field import moments, see_blocks


def check(parts: tuple[Tensor, Tensor, Tensor], plan: BlockPlan, scale: float) -> None:
    """Stop unless the kernels give what torch gives."""
    query, key, value = parts
    assert plan.query_order is not None and plan.key_order is not None
    clusters = from_sorted(
        query,
        key,
        SortedLabels(plan.query_order, plan.query_sizes),
        SortedLabels(plan.key_order, plan.key_sizes),
    )
    means = clusters.query.centroids, clusters.key.centroids
    exact = by_definition(
        means[0].double(),
        means[1].double(),
        key.double(),
        value.double(),
        plan.key_order,
        plan.key_sizes,
        scale=scale,
        by="torch",
    )
    bias, seen, _ = see_blocks(*means, key, value, plan.key_order, plan.key_sizes, scale)
    full = plan.key_sizes.unsqueeze(2) > 0
    zero = torch.zeros(())
    gate("log S", torch.where(full, bias, zero), torch.where(full, exact.bias, 0.0), 1e-4)
    gate("V", seen, exact.value, 1e-4)
    output = run_plan(query, key, value, plan, backend="cpp")
    gate("attention", output, run_plan(query, key, value, plan, backend="reference"), 1e-4)


def parts_of(
    tokens: int, size: int, heads: int, counts: tuple[int, int], tolerance: float
) -> tuple[dict[str, Call], BlockPlan]:
    """Return the calls to time, and the plan."""
    query, key, value = clustered_tokens(1, heads, tokens, size, generator=seeded(0))
    scale = size**-0.5
    labels = k_means_labels(query, key, value, *counts, iterations=2)

    def make_plan(groups: int = 8) -> BlockPlan:
        sides = sort_sides(labels, counts)
        return plan_far_field(query, key, value, *sides, tolerance=tolerance, groups=groups)

    plan = make_plan()
    check((query, key, value), plan, scale)
    assert plan.query_order is not None and plan.key_order is not None
    orders = plan.query_order, plan.key_order, plan.key_order
    sizes = plan.query_sizes, plan.key_sizes, plan.key_sizes
    query_mean, key_mean = (
        moments(side, order, own)[0]
        for side, order, own in zip((query, key), orders, sizes, strict=False)
    )

    def sort_and_moments() -> None:
        sort_sides(labels, counts)
        for side, order, own in zip((query, key, value), orders, sizes, strict=True):
            moments(side, order, own)

    sides = sort_sides(labels, counts)

    def cluster() -> None:
        k_means_labels(query, key, value, *counts, old=sides)

    order = plan.key_order
    return {
        "dense": lambda: scaled_dot_product_attention(query, key, value),
        "labels, one iteration": cluster,
        "sort and moments": sort_and_moments,
        "centroid pass": lambda: see_blocks(
            query_mean, key_mean, key, value, order, plan.key_sizes, scale
        ),
        "plan, all of it": make_plan,
        "plan without groups": lambda: make_plan(0),
        "attention": lambda: run_plan(query, key, value, plan, backend="cpp"),
        "attention without terms": lambda: run_plan(
            query, key, value, replace(plan, terms=None), backend="cpp"
        ),
    }, plan


def main(
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("out/benchmarks"),
    tokens: Annotated[int, typer.Option(min=100)] = 7488,
    size: Annotated[int, typer.Option(min=1)] = 32,
    heads: Annotated[int, typer.Option(min=1)] = 4,
    query_clusters: Annotated[int, typer.Option(min=1)] = 89,
    key_clusters: Annotated[int, typer.Option(min=1)] = 355,
    tolerance: Annotated[float, typer.Option(min=0)] = 14 / 7488,
    repeats: Annotated[int, typer.Option(min=1)] = 7,
) -> None:
    """Time the parts of one call; keep the machine idle."""
    counts = query_clusters, key_clusters
    calls, plan = parts_of(tokens, size, heads, counts, tolerance)
    held = allocated_memory(lambda: calls["plan, all of it"])
    seconds = interleave(calls, repeats)
    dense = seconds.pop("dense")
    assert isinstance(plan.terms, FarTerms)
    density, middle = float(plan.density().mean()), float(plan.terms.middle.float().mean())
    table = Table(
        title=f"{tokens:,} tokens, {heads} heads of {size}, {query_clusters} / {key_clusters} "
        f"clusters, density {density:.3f}, {middle * key_clusters:.0f} terms a query"
    )
    table.add_column("part")
    table.add_column("% of dense", justify="right")
    for name, taken in seconds.items():
        table.add_row(name, f"{100 * taken / dense:.2f}")
    Console().print(table)
    values = plan.terms.value.nbytes
    print(f"planning holds {held / 1e6:.1f} MB at most, of which V is {values / 1e6:.1f} MB")
    rows = [{"part": name, "share": taken / dense} for name, taken in seconds.items()]
    memory = {"planning_bytes": held, "value_bytes": values}
    figures = {"density": density, "middle": middle, "dense_seconds": dense, **memory}
    path = save(out, "far_field_parts", rows, **figures)
    print(f"{path} written")


if __name__ == "__main__":
    typer.run(main)
