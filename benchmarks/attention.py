"""Block-sparse attention against dense SDPA and compiled flex_attention, on the CPU.

    python benchmarks/attention.py --out out/benchmarks         # all points: about 12 minutes
    python benchmarks/attention.py --tokens 8192 --density 0.2  # one point

`of ideal` is dense seconds x density / sparse seconds: 1 means that only the kept pairs cost
anything.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from harness import Call, allocated_memory, extra_memory, gate, interleave, plot_growth, save
from rich.console import Console
from rich.table import Table
from synthetic import clustered_tokens
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from svoo import BlockPlan, MeanTerms, SVOOConfig, required_density, run_plan, sparse_attention
from svoo.core.cluster_counts import default_clusters
from svoo.core.random import seeded
from svoo.kernels.cpp import why_no_bfloat16_products

HEAD_SIZE = 64
FLEX_BLOCK = 128
BACKENDS = ("cpp", "blocked")


def even_plan(
    tokens: int,
    query_blocks: int,
    key_blocks: int,
    density: float,
    *,
    compensate: bool,
    heads: int = 1,
) -> BlockPlan:
    """Return a random plan of about equal blocks in a random token order, as clusters would be."""
    generator = seeded(1)
    ranks = torch.rand(1, heads, query_blocks, key_blocks, generator=generator).argsort(dim=-1)
    keep = ranks < max(1, round(density * key_blocks))

    def labels(blocks: int) -> Tensor:
        shuffled = torch.rand(1, heads, tokens, generator=generator).argsort(dim=-1)
        return shuffled * blocks // tokens

    marked = torch.ones(1, heads, key_blocks, dtype=torch.bool)
    terms = MeanTerms(marked) if compensate else None
    return BlockPlan.from_labels(labels(query_blocks), labels(key_blocks), keep, terms)


def random_tokens(tokens: int, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key, value `[1, heads, tokens, HEAD_SIZE]`."""
    shape = (1, heads, tokens, HEAD_SIZE)
    query, key, value = (torch.randn(shape, generator=seeded(i)) for i in range(3))
    return query, key, value


def flex_mask(keep: Tensor, tokens: int) -> BlockMask:
    """Return the flex_attention mask of fixed 128-token blocks for keep `[1, H, Cq, Ck]`."""
    counts = keep.sum(dim=-1).int()
    places = keep.int().argsort(dim=-1, descending=True, stable=True).int()
    empty = torch.zeros_like(counts)
    return BlockMask.from_kv_blocks(
        empty,
        torch.zeros_like(places),
        counts,
        places,
        BLOCK_SIZE=FLEX_BLOCK,
        seq_lengths=(tokens, tokens),
    )


def compare_backends(
    tokens: int, density: float, query_blocks: int, heads: int, repeats: int
) -> dict[str, Any]:
    """Time dense and sparse attention after checking that the sparse output is right."""
    query, key, value = random_tokens(tokens, heads)
    key_blocks = max(32, default_clusters(tokens)[1])
    plans = {
        compensate: even_plan(
            tokens, query_blocks, key_blocks, density, compensate=compensate, heads=heads
        )
        for compensate in (False, True)
    }
    small = 2048  # the gate: the same code at a size that the reference can hold
    part = query[:, :, :small], key[:, :, :small], value[:, :, :small]
    calls: dict[str, Call] = {"dense": lambda: scaled_dot_product_attention(query, key, value)}
    for compensate, plan in plans.items():
        little = even_plan(small, 8, 32, density, compensate=compensate, heads=heads)
        exact = run_plan(*part, little, backend="reference")
        for backend in BACKENDS:
            gate(backend, run_plan(*part, little, backend=backend), exact, 2e-5)
            name = f"{backend}_compensated" if compensate else backend
            calls[name] = partial(run_plan, query, key, value, plan, backend=backend)
    seconds = interleave(calls, repeats)
    real = float(plans[False].density().mean())
    dense = seconds.pop("dense")
    return {
        "tokens": tokens,
        "heads": heads,
        "density": real,
        "query_blocks": query_blocks,
        "key_blocks": key_blocks,
        "dense_seconds": dense,
        **{f"{name}_seconds": taken for name, taken in seconds.items()},
        **{f"{name}_of_ideal": dense * real / taken for name, taken in seconds.items()},
    }


def compare_flex(tokens: int, density: float, heads: int, repeats: int) -> dict[str, Any]:
    """Time both backends against compiled flex_attention on equal 128-token blocks, in token
    order."""
    query, key, value = random_tokens(tokens, heads)
    blocks = tokens // FLEX_BLOCK
    keep = even_plan(tokens, blocks, blocks, density, compensate=False, heads=heads).keep
    sizes = torch.full((1, heads, blocks), FLEX_BLOCK)
    plan = BlockPlan(None, None, sizes, sizes, keep)
    mask = flex_mask(keep, tokens)
    compiled = torch.compile(flex_attention, dynamic=False)

    def flex() -> Tensor:
        with torch.no_grad():
            output = compiled(query, key, value, block_mask=mask)
        assert isinstance(output, Tensor)
        return output

    calls: dict[str, Call] = {"flex": flex}
    for backend in BACKENDS:
        gate(backend, run_plan(query, key, value, plan, backend=backend), flex(), 2e-5)
        calls[backend] = partial(run_plan, query, key, value, plan, backend=backend)
    seconds = interleave(calls, repeats)
    return {
        "tokens": tokens,
        "density": float(plan.density().mean()),
        **{f"{name}_seconds": taken for name, taken in seconds.items()},
        **{f"flex_over_{name}": seconds["flex"] / seconds[name] for name in BACKENDS},
    }


def compare_dense(size: int, block: int, tokens: int, heads: int, repeats: int) -> dict[str, Any]:
    """Time the cpp backend with all pairs kept, by query blocks of so many tokens in a random
    order, against SDPA."""
    shape = (1, heads, tokens, size)
    query, key, value = (torch.randn(shape, generator=seeded(i)) for i in range(3))
    plan = even_plan(tokens, -(-tokens // block), tokens // 21, 1.0, compensate=False, heads=heads)
    dense = scaled_dot_product_attention(query, key, value)
    gate("cpp", run_plan(query, key, value, plan, backend="cpp"), dense, 2e-5)
    calls: dict[str, Call] = {
        "dense": lambda: scaled_dot_product_attention(query, key, value),
        "cpp": partial(run_plan, query, key, value, plan, backend="cpp"),
    }
    errors = {}
    if why_no_bfloat16_products() is None:
        calls["bf16"] = partial(run_plan, query, key, value, plan, backend="cpp-bf16")
        rounded = run_plan(query, key, value, plan, backend="cpp-bf16")
        gate("cpp-bf16", rounded, dense, 2**-8)  # weights and values are rounded by up to 2^-9
        errors = {"bf16_error": float((rounded - dense).norm() / dense.norm())}
    seconds = interleave(calls, repeats)
    dense_seconds = seconds["dense"]
    return {
        "size": size,
        "block": block,
        "tokens": tokens,
        **{f"{name}_seconds": taken for name, taken in seconds.items()},
        "of_dense": seconds["cpp"] / dense_seconds,
        **({"bf16_of_dense": seconds["bf16"] / dense_seconds} if errors else {}),
        **errors,
    }


def whole_method(tokens: int, heads: int, repeats: int) -> dict[str, Any]:
    """Time the whole method (clustering, selection, attention) on clustered tokens against
    dense attention."""
    query, key, value = clustered_tokens(1, heads, tokens, HEAD_SIZE, generator=seeded(0))
    budgets = required_density(query, key, rows=128).value
    config = SVOOConfig.mean_terms()
    dense = scaled_dot_product_attention(query, key, value)
    sparse = sparse_attention(query, key, value, config, budgets=budgets)
    error = float((sparse - dense).norm() / dense.norm())
    part = query[:, :, :2048], key[:, :, :2048], value[:, :, :2048]
    exact = sparse_attention(*part, replace(config, backend="reference"), budgets=budgets)
    gate("the whole method", sparse_attention(*part, config, budgets=budgets), exact, 2e-5)
    row = interleave(
        {
            "dense": lambda: scaled_dot_product_attention(query, key, value),
            "svoo": lambda: sparse_attention(
                query, key, value, config, budgets=budgets, check=False
            ),
        },
        repeats,
    )
    return {"tokens": tokens, "error": error, **{f"{n}_seconds": s for n, s in row.items()}}


def memory(tokens: int) -> dict[str, int]:
    """Return extra peak bytes of one dense and one sparse call, and of a buffer of keys and
    values.

    A call of a few tokens comes first: what it loads of code is not the call's.
    """
    few = 512

    def dense() -> Call:
        parts = random_tokens(tokens, 1)
        scaled_dot_product_attention(*random_tokens(few, 1))
        return lambda: scaled_dot_product_attention(*parts)

    def sparse(backend: str) -> Call:
        def call(count: int) -> Call:
            parts = random_tokens(count, 1)
            plan = even_plan(count, *default_clusters(count), 0.2, compensate=True)
            return lambda: run_plan(*parts, plan, backend=backend)

        call(few)()
        return call(tokens)

    def method() -> Call:
        def call(count: int) -> Call:
            parts, budgets = random_tokens(count, 1), torch.tensor([0.2])
            config = SVOOConfig.mean_terms()
            return lambda: sparse_attention(*parts, config, budgets=budgets, check=False)

        call(few)()
        return call(tokens)

    return {
        "tokens": tokens,
        "dense_bytes": extra_memory(dense),
        **{f"{name}_bytes": extra_memory(partial(sparse, name)) for name in BACKENDS},
        "svoo_bytes": extra_memory(method),
        "svoo_tensor_bytes": allocated_memory(method),
        "buffer_bytes": tokens * 2 * HEAD_SIZE * 4,
        "all_pairs_bytes": tokens * tokens * 4,
    }


def show_all_pairs(console: Console, heads: int, repeats: int) -> list[dict[str, Any]]:
    """Time the kernel with all pairs kept against SDPA, and print the table."""
    all_pairs = [
        compare_dense(size, block, 7488, heads, repeats)
        for size in (32, 64, 128)
        for block in (192, 84, 48, 16)
    ]
    table = Table(title="all pairs kept, 7,488 tokens: seconds")
    columns = {
        "SDPA": "dense_seconds", "cpp": "cpp_seconds", "cpp / SDPA": "of_dense",
        "bf16 / SDPA": "bf16_of_dense", "error of bf16": "bf16_error",
    }  # fmt: skip
    for name in ("head size", "query block", *columns):
        table.add_column(name, justify="right")
    for row in all_pairs:
        found = (f"{row[name]:.4f}" if name in row else "-" for name in columns.values())
        table.add_row(str(row["size"]), str(row["block"]), *found)
    console.print(table)
    return all_pairs


def main(
    *,
    out: Annotated[Path, typer.Option(help="Where JSON and plots go.")] = Path("out/benchmarks"),
    tokens: Annotated[list[int] | None, typer.Option(help="Token counts (repeatable).")] = None,
    density: Annotated[list[float] | None, typer.Option(help="Densities (repeatable).")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 7,
    query_blocks: Annotated[int, typer.Option(min=1)] = 32,
    heads: Annotated[int, typer.Option(min=1)] = 4,
    all_pairs_only: Annotated[
        bool, typer.Option("--all-pairs-only", help="Only all pairs against SDPA, by head size.")
    ] = False,
) -> None:
    """Run all comparisons; keep the machine idle."""
    console = Console()
    if all_pairs_only:
        save(out, "all_pairs", show_all_pairs(console, heads, repeats))
        return
    peak = memory(32_768)  # first: it forks, which is for processes that have no threads yet
    counts = tokens or [4096, 8192, 16384, 32768]
    densities = density or [0.1, 0.2, 0.3, 0.5]
    rows = []
    table = Table(
        title=f"{heads} heads of {HEAD_SIZE}, {query_blocks} query blocks, float32: seconds "
        "(of ideal)"
    )
    columns = [name for backend in BACKENDS for name in (backend, f"{backend}_compensated")]
    for name in ("tokens", "density", "dense", *columns):
        table.add_column(name.replace("_", ", "), justify="right")
    for count in counts:
        for wanted in densities:
            turns = repeats if count < 32_768 else max(3, repeats // 2)
            row = compare_backends(count, wanted, query_blocks, heads, turns)
            rows.append(row)
            cells = (
                f"{row[f'{name}_seconds']:.3f} ({row[f'{name}_of_ideal']:.2f})" for name in columns
            )
            table.add_row(
                f"{count:,}", f"{row['density']:.3f}", f"{row['dense_seconds']:.3f}", *cells
            )
    console.print(table)
    flex = [
        compare_flex(count, wanted, heads, repeats) for count in counts for wanted in densities
    ]
    table = Table(title=f"fixed blocks of {FLEX_BLOCK} in token order: seconds")
    for name in ("tokens", "density", "flex_attention", *(f"flex / {name}" for name in BACKENDS)):
        table.add_column(name, justify="right")
    for row in flex:
        names = ("density", "flex_seconds", *(f"flex_over_{name}" for name in BACKENDS))
        table.add_row(f"{row['tokens']:,}", *(f"{row[name]:.3f}" for name in names))
    console.print(table)
    all_pairs = show_all_pairs(console, heads, repeats)
    whole = [whole_method(count, heads, max(3, repeats // 2)) for count in counts]
    for row in whole:
        speed_up = row["dense_seconds"] / row["svoo_seconds"]
        console.print(
            f"whole method, clustered tokens, {row['tokens']:,}: {speed_up:.2f}x, error "
            f"{row['error']:.4f}"
        )
    megabytes = {name: f"{size / 2**20:.1f} MB" for name, size in peak.items() if name != "tokens"}
    console.print("extra peak memory at 32,768 tokens, one head, one thread:", megabytes)
    limit = peak["dense_bytes"] + peak["buffer_bytes"]
    for name in (*BACKENDS, "svoo"):
        verdict = "below" if peak[f"{name}_bytes"] < limit else "NOT below"
        console.print(f"{name}: {verdict} a dense call and one buffer of keys and values")
    path = save(out, "attention", rows, flex=flex, all_pairs=all_pairs, whole=whole, memory=peak)
    curves = {
        "dense SDPA": [(row["tokens"], row["dense_seconds"]) for row in whole],
        "SVOO, clustering included": [(row["tokens"], row["svoo_seconds"]) for row in whole],
    }
    plot_growth(
        path.with_suffix(".png"),
        curves,
        f"{heads} heads of {HEAD_SIZE}, clustered tokens",
        "seconds",
    )
    console.print(f"{path} and {path.with_suffix('.png').name} written")


if __name__ == "__main__":
    typer.run(main)
