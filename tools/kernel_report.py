"""What compilers make of the kernels: registers, spills, shared memory, loads ahead. No GPU.

    python -m tools.kernel_report                      # head size 128 in bfloat16
    python -m tools.kernel_report --all --json FILE    # every head size, dtype and architecture

It compiles the very launches that a call on 75,600 tokens and 40 heads makes, and counts the
floating-point operations of the assignment from the bounds of its loops.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from svoo.core.features import FEATURES
from svoo.core.terms import GroupTerms
from svoo.errors import BackendUnavailableError
from svoo.kernels.triton import NEEDS, assign, centroids, far_field, ranges, rows, select, sparse
from svoo.kernels.triton.launch import Launch, interpreted
from svoo.kernels.triton.tiles import (
    Architecture,
    assignment_tile,
    attention_tile,
    far_field_tile,
)
from tools.kernel_code import TYPES, compile_launch

TOKENS, HEADS, QUERY_CLUSTERS, KEY_CLUSTERS = 75_600, 40, 256, 1024  # the paper's 720p clip
HEAD_SIZES = (32, 64, 80, 96, 128)
DEFAULT_ARCHITECTURES = (80, 90, 100)
HEAVIEST = (
    "attention, far terms and groups",
    "far field",
    "assign",
    "assign, features",
)  # on all other architectures
TERMS = ("", "mean terms", "far terms", "far terms and groups")
AMD = ("gfx942", "gfx1100")
_GROUPS = 8


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor holds (CUDA programming guide, compute capabilities)."""

    block_shared: int  # bytes that a block may ask for
    shared: int  # bytes in all, of which each block costs one kilobyte more than it asked for
    warps: int
    blocks: int
    registers: int = 65_536

    def occupancy(self, registers: int, shared: int, warps: int) -> float:
        """Return the fraction of the warps that can be resident at a time."""
        a_warp = -(-registers * 32 // 256) * 256  # registers are given out by 256
        fitting = min(
            self.registers // a_warp // warps,
            self.shared // (shared + 1024),
            self.warps // warps,
            self.blocks,
        )
        return fitting * warps / self.warps


ARCHITECTURES = {
    80: Limits(163 << 10, 164 << 10, warps=64, blocks=32),
    86: Limits(99 << 10, 100 << 10, warps=48, blocks=16),
    89: Limits(99 << 10, 100 << 10, warps=48, blocks=24),
    90: Limits(227 << 10, 228 << 10, warps=64, blocks=32),
    100: Limits(227 << 10, 228 << 10, warps=64, blocks=32),
    103: Limits(227 << 10, 228 << 10, warps=64, blocks=32),
    120: Limits(99 << 10, 100 << 10, warps=48, blocks=24),
}


@dataclass(frozen=True)
class Row:
    """A kernel on an architecture ("sm_90"); see `Code`. `occupancy` is a fraction of the resident
    warps, `per_product` the instructions of the main loop for each tensor-core instruction.
    head_dim None: the kernel reads no tokens."""

    name: str
    arch: str
    head_dim: int | None
    dtype: str
    registers: int
    spills: int
    shared: int
    occupancy: float | None
    buffers: int | None
    pending: int | None
    instructions: int | None
    per_product: float | None


def report(*, everything: bool) -> dict[str, Any]:
    """Compile the default kernels, or all of them, and count: what `--json` writes."""
    if interpreted():
        raise BackendUnavailableError(
            "nothing can be compiled in Triton's interpreter: unset TRITON_INTERPRET"
        )
    all_architectures: list[Architecture] = [*ARCHITECTURES, *AMD]
    found = [
        describe_launch(name, launch, architecture)
        for architecture in all_architectures
        for name, launch in launches(architecture, everything=everything)
        if everything or architecture in DEFAULT_ARCHITECTURES or name in HEAVIEST
    ]
    return {"kernels": [asdict(row) for row in found], "flops": flops()}


def launches(architecture: Architecture, *, everything: bool) -> Iterator[tuple[str, Launch]]:
    """Give the launches of a whole call on an architecture, for tensors that hold no numbers."""
    yield "selection", _selection()
    yield "best of a row", _best()
    yield "ranges", _ranges()
    for size in HEAD_SIZES if everything else (128,):
        for dtype in NEEDS.dtypes if everything else (torch.bfloat16,):
            for terms in TERMS:
                about = f"attention, {terms}" if terms else "attention"
                yield about, _attention(architecture, size, dtype, terms)
                if everything:
                    lse = _attention(architecture, size, dtype, terms, lse=True)
                    yield f"{about}, with log-sum-exp", lse
            yield "terms alone", _attention(architecture, size, dtype, TERMS[-1], kept=False)
            yield "far field", _far_field(architecture, size, dtype)
            yield "assign", _assign(architecture, size, dtype)
            yield "means", _means(size, dtype)
            yield "moments", _means(size, dtype, moments=True)
    yield "assign, features", _assign(architecture, FEATURES, torch.float32)


def describe_launch(name: str, launch: Launch, architecture: Architecture) -> Row:
    """Compile a launch for an architecture: its row."""
    code = compile_launch(launch, architecture)
    head_size = launch.arguments.get("SIZE")
    first = next(value for value in launch.arguments.values() if isinstance(value, Tensor))
    per_product = None
    if code.instructions is not None and code.products is not None:
        per_product = round(code.instructions / code.products, 1)
    occupancy = None
    if isinstance(architecture, int):
        limits = ARCHITECTURES[architecture]
        occupancy = round(limits.occupancy(code.registers, code.shared, launch.warps), 3)
    return Row(
        name=name,
        arch=architecture if isinstance(architecture, str) else f"sm_{architecture}",
        head_dim=int(head_size) if isinstance(head_size, int) else None,
        dtype=TYPES[first.dtype],
        registers=code.registers,
        spills=code.spills,
        shared=code.shared,
        occupancy=occupancy,
        buffers=code.buffers,
        pending=code.pending,
        instructions=code.instructions,
        per_product=per_product,
    )


def _empty(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _tokens(size: int, dtype: torch.dtype) -> Tensor:
    return _empty(1, TOKENS, HEADS, size, dtype=dtype).transpose(1, 2)  # diffusers' order


def _pieces(blocks: int, length: int) -> ranges.Pieces:
    part = _empty(1, HEADS, TOKENS // length + blocks, dtype=torch.int32)
    return ranges.Pieces(part, part, part)


def _kept(pieces: int) -> ranges.Kept:
    return ranges.Kept(
        _empty(1, HEADS, QUERY_CLUSTERS, pieces + ranges.GROUP, dtype=torch.int32),
        _empty(1, HEADS, QUERY_CLUSTERS, dtype=torch.int32),
    )


def _keep() -> Tensor:
    return _empty(1, HEADS, QUERY_CLUSTERS, KEY_CLUSTERS, dtype=torch.bool)


def _selection() -> Launch:
    return select.plan_launch(
        _empty(1, HEADS, QUERY_CLUSTERS, KEY_CLUSTERS, dtype=torch.float32),
        _empty(1, HEADS, KEY_CLUSTERS, dtype=torch.int64),
        math.ceil(0.9 * (1 << 40)),
        1 << 40,
        _empty(1, HEADS, 1, dtype=torch.int64),
        _empty(1, HEADS, 1, dtype=torch.bool),
        _keep(),
        count_tokens=True,
    )


def _best() -> Launch:
    scores = _empty(1, HEADS, QUERY_CLUSTERS, KEY_CLUSTERS, dtype=torch.float32)
    factor = _empty(1, HEADS, QUERY_CLUSTERS, 1, dtype=torch.float32)
    return select.plan_best(scores, 102, factor, 943_719, _keep(), enough_bits=20)


def _ranges() -> Launch:
    pieces = _pieces(KEY_CLUSTERS, ranges.PIECE)
    return ranges.plan_launch(pieces, _keep(), _kept(pieces.block.shape[2]))


def _rows(size: int, dtype: torch.dtype, terms: str) -> rows.TermRows:
    if not terms:
        return rows.TermRows()
    mean = _empty(1, HEADS, KEY_CLUSTERS, size, dtype=dtype)
    bias = _empty(1, HEADS, QUERY_CLUSTERS, KEY_CLUSTERS, dtype=torch.float32)
    entered = _kept(KEY_CLUSTERS)
    if terms == "mean terms":
        return rows.TermRows(rows.BlockRows(mean, mean, bias, entered))
    seen = _empty(1, HEADS, QUERY_CLUSTERS, KEY_CLUSTERS, size, dtype=dtype)
    blocks = rows.BlockRows(mean, seen, bias, entered)
    if terms == "far terms":
        return rows.TermRows(blocks)
    grouped = _empty(1, HEADS, QUERY_CLUSTERS, _GROUPS, size, dtype=dtype)
    group_bias = _empty(1, HEADS, QUERY_CLUSTERS, _GROUPS, dtype=torch.float32)
    return rows.TermRows(blocks, GroupTerms(group_bias, grouped, grouped))


def _attention(
    architecture: Architecture,
    size: int,
    dtype: torch.dtype,
    terms: str,
    *,
    kept: bool = True,
    lse: bool = False,
) -> Launch:
    tile = attention_tile(architecture, dtype)
    tokens = _tokens(size, dtype)
    pieces = _pieces(KEY_CLUSTERS, ranges.PIECE).block.shape[2]
    sums = _empty(1, HEADS, TOKENS, dtype=torch.float32)
    lanes = ranges.Lanes(
        _empty(1, HEADS, pieces * ranges.PIECE, dtype=torch.int32),
        _empty(1, HEADS, (pieces + 1) * ranges.PIECE, dtype=torch.float32),
    )
    return sparse.plan_launch(
        tokens,
        tokens,
        tokens,
        tokens,
        sums if lse or not kept else None,  # terms alone are there to be merged
        query_order=_empty(1, HEADS, TOKENS, dtype=torch.int64),
        query_pieces=_pieces(QUERY_CLUSTERS, tile.rows),
        kept=_kept(pieces) if kept else None,
        lanes=lanes if kept else None,
        rows=_rows(size, dtype, terms),
        query_blocks=QUERY_CLUSTERS,
        scale=size**-0.5,
        tile=tile,
    )


def _far_field(architecture: Architecture, size: int, dtype: torch.dtype) -> Launch:
    tokens = _tokens(size, dtype)
    return far_field.plan_launch(
        _empty(1, HEADS, QUERY_CLUSTERS, size, dtype=dtype),
        _empty(1, HEADS, KEY_CLUSTERS, size, dtype=dtype),
        tokens,
        tokens,
        _empty(1, HEADS, TOKENS, dtype=torch.int64),
        _empty(1, HEADS, KEY_CLUSTERS, dtype=torch.int64),
        _empty(1, HEADS, QUERY_CLUSTERS, KEY_CLUSTERS, dtype=torch.float32),
        _empty(1, HEADS, QUERY_CLUSTERS, KEY_CLUSTERS, size, dtype=dtype),
        scale=size**-0.5,
        tile=far_field_tile(architecture, dtype),
    )


def _assign(architecture: Architecture, size: int, dtype: torch.dtype) -> Launch:
    return assign.plan_launch(
        _tokens(size, dtype),
        _empty(1, HEADS, KEY_CLUSTERS, size, dtype=dtype),
        _empty(1, HEADS, KEY_CLUSTERS, dtype=torch.float32),
        _empty(1, HEADS, TOKENS, dtype=torch.int64),
        assignment_tile(architecture, dtype, size),
    )


def _means(size: int, dtype: torch.dtype, *, moments: bool = False) -> Launch:
    means = _empty(1, HEADS, KEY_CLUSTERS, size, dtype=torch.float32)
    return centroids.plan_launch(
        _tokens(size, dtype),
        _empty(1, HEADS, TOKENS, dtype=torch.int64),
        _empty(1, HEADS, KEY_CLUSTERS, dtype=torch.int64),
        means,
        means if moments else None,
    )


def flops() -> dict[str, float]:
    """Count the floating-point operations of one iteration of co-clustering for one head, ours
    and in the form with affinity matrices, both with our tiles.

    That form takes two passes a side: tokens x the other side's centroids x D, then tokens x own
    centroids x the other side's.
    """
    tile = assignment_tile(90, torch.bfloat16)
    size = 128
    transform = 2 * QUERY_CLUSTERS * KEY_CLUSTERS * size  # W = norm(C O^T) O
    ours = two_pass = 0
    for own, other in ((KEY_CLUSTERS, QUERY_CLUSTERS), (QUERY_CLUSTERS, KEY_CLUSTERS)):
        ours += transform + assign.multiply_adds(TOKENS, own, size, tile)
        two_pass += assign.multiply_adds(TOKENS, other, size, tile)
        two_pass += assign.multiply_adds(TOKENS, own, other, tile)
    return {
        "tokens": TOKENS,
        "query_clusters": QUERY_CLUSTERS,
        "key_clusters": KEY_CLUSTERS,
        "head_dim": size,
        "co_clustering": 2 * ours,
        "two_pass": 2 * two_pass,
        "ratio": ours / two_pass,
    }


def as_table(found: dict[str, Any]) -> str:
    """Return the rows as a Markdown table with the count of operations below it."""
    columns = [field.name for field in fields(Row)]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for row in found["kernels"]:
        cells = ("-" if row[column] is None else str(row[column]) for column in columns)
        lines.append("| " + " | ".join(cells) + " |")
    count = found["flops"]
    lines.append(
        f"\nCo-clustering, one iteration of one head at {count['tokens']:,} tokens, "
        f"{count['query_clusters']} / {count['key_clusters']} clusters: "
        f"{count['co_clustering'] / 1e9:.1f} GFLOP, {count['ratio']:.3f} of the "
        f"{count['two_pass'] / 1e9:.1f} GFLOP of the two-pass form."
    )
    return "\n".join(lines)


def main(
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Every head size, dtype and architecture.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the rows to this file too.")
    ] = None,
) -> None:
    """Compile the kernels without a GPU and print what the assembler says."""
    found = report(everything=everything)
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1) + "\n")
    typer.echo(as_table(found))


if __name__ == "__main__":
    typer.run(main)
