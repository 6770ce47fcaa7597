"""What the assembler says of the kernels: registers, spills, shared memory, occupancy. No GPU.

    python -m tools.kernel_report                      # head size 128, bfloat16, sm_80 / 90 / 100
    python -m tools.kernel_report --all --json FILE    # every head size, dtype and architecture

It compiles the very launches that a call on 75,600 tokens and 40 heads makes, and counts the
floating-point operations of the assignment from the bounds of its loops.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import triton
import typer
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from svoo.errors import BackendUnavailableError
from svoo.kernels.triton import NEEDS, assign, centroids, ranges, sparse
from svoo.kernels.triton.launch import Launch, interpreted
from svoo.kernels.triton.tiles import assignment_tile, attention_tile

TOKENS, HEADS, QUERY_CLUSTERS, KEY_CLUSTERS = 75_600, 40, 256, 1024  # the paper's 720p clip
HEAD_SIZES = (32, 64, 80, 96, 128)
DEFAULT_ARCHITECTURES = (80, 90, 100)
_TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.bool: "i1",
}


@dataclass(frozen=True)
class Architecture:
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
    80: Architecture(163 << 10, 164 << 10, warps=64, blocks=32),
    86: Architecture(99 << 10, 100 << 10, warps=48, blocks=16),
    89: Architecture(99 << 10, 100 << 10, warps=48, blocks=24),
    90: Architecture(227 << 10, 228 << 10, warps=64, blocks=32),
    100: Architecture(227 << 10, 228 << 10, warps=64, blocks=32),
    120: Architecture(99 << 10, 100 << 10, warps=48, blocks=24),
}


@dataclass(frozen=True)
class Compiled:
    """One row: a kernel on an architecture ("sm_90"). `spills` are bytes a thread stores and
    loads, `occupancy` a fraction of the resident warps; head_dim None: the kernel reads no
    tokens."""

    name: str
    arch: str
    head_dim: int | None
    dtype: str
    default: bool
    registers: int
    spills: int
    shared: int
    occupancy: float


def report(*, everything: bool) -> dict[str, Any]:
    """Compile the default kernels, or all of them, and count: what `--json` writes."""
    if interpreted():
        raise BackendUnavailableError(
            "nothing can be compiled in Triton's interpreter: unset TRITON_INTERPRET"
        )
    rows = [
        compile_launch(name, launch, architecture)
        for architecture in (ARCHITECTURES if everything else DEFAULT_ARCHITECTURES)
        for name, launch in launches(architecture, everything=everything)
    ]
    return {"kernels": [asdict(row) for row in rows], "flops": flops()}


def launches(architecture: int, *, everything: bool) -> Iterator[tuple[str, Launch]]:
    """Give the launches of a whole call on an architecture, for tensors that hold no numbers."""
    yield "ranges", _ranges()
    for size in HEAD_SIZES if everything else (128,):
        for dtype in NEEDS.dtypes if everything else (torch.bfloat16,):
            yield "attention", _attention(architecture, size, dtype, kept=True, means=False)
            yield (
                "attention, compensated",
                _attention(architecture, size, dtype, kept=True, means=True),
            )
            yield "compensation", _attention(architecture, size, dtype, kept=False, means=True)
            if everything:
                for means in (False, True):
                    about = ", compensated" if means else ""
                    yield (
                        f"attention{about}, with log-sum-exp",
                        _attention(architecture, size, dtype, kept=True, means=means, lse=True),
                    )
                    yield (
                        f"attention{about}, tokens in order",
                        _attention(
                            architecture, size, dtype, kept=True, means=means, ordered=False
                        ),
                    )
            yield "assign", _assign(size, dtype)
            yield "means", _means(size, dtype)


def compile_launch(name: str, launch: Launch, architecture: int) -> Compiled:
    """Compile a launch for an architecture and read what the assembler says."""
    kernel = launch.kernel
    types: dict[str, str] = {}
    constants: dict[tuple[int, ...], object] = {}
    hints: dict[tuple[int, ...], list[list[object]]] = {}
    for place, parameter in enumerate(kernel.params):
        value = launch.arguments[parameter.name]
        # As a launch would: None and 1 are constants, pointers and multiples of 16 are aligned.
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
            types[parameter.name] = "constexpr"
            constants[(place,)] = value
            continue
        types[parameter.name] = _type_name(value)
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
            hints[(place,)] = [["tt.divisibility", 16]]
    said = io.StringIO()
    with (
        triton.knobs.compilation.scope(),
        triton.knobs.nvidia.scope(),
        redirect_stdout(said),
    ):
        triton.knobs.compilation.always_compile = True  # a cached kernel has no log
        triton.knobs.nvidia.dump_ptxas_log = True
        compiled = triton.compile(
            ASTSource(kernel, types, constants, hints),
            target=GPUTarget("cuda", architecture, 32),
            options=launch.options,
        )
    log = said.getvalue()
    registers = _read(r"Used (\d+) registers", log)
    spills = _read(r"(\d+) bytes spill stores", log) + _read(r"(\d+) bytes spill loads", log)
    shared = int(compiled.metadata.shared)
    head_size = launch.arguments.get("SIZE")
    dtype = _dtype(launch)
    limits = ARCHITECTURES[architecture]
    return Compiled(
        name=name,
        arch=f"sm_{architecture}",
        head_dim=int(head_size) if isinstance(head_size, int) else None,
        dtype=dtype,
        default=architecture in DEFAULT_ARCHITECTURES
        and head_size in (None, 128)
        and dtype in ("bf16", "i32"),
        registers=registers,
        spills=spills,
        shared=shared,
        occupancy=round(limits.occupancy(registers, shared, launch.warps), 3),
    )


def _type_name(value: object) -> str:
    if isinstance(value, Tensor):
        return f"*{_TYPES[value.dtype]}"
    if isinstance(value, int):
        return "i32" if value < 1 << 31 else "i64"
    return "fp32"


def _dtype(launch: Launch) -> str:
    first = next(value for value in launch.arguments.values() if isinstance(value, Tensor))
    return _TYPES[first.dtype]


def _read(pattern: str, log: str) -> int:
    found = re.search(pattern, log)
    if found is None:
        raise BackendUnavailableError(f"the assembler's log has no {pattern!r}: {log!r}")
    return int(found[1])


def _empty(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _tokens(size: int, dtype: torch.dtype) -> Tensor:
    return _empty(1, TOKENS, HEADS, size, dtype=dtype).transpose(1, 2)  # diffusers' order


def _pieces(blocks: int, length: int) -> ranges.Pieces:
    part = _empty(1, HEADS, TOKENS // length + blocks, dtype=torch.int32)
    return ranges.Pieces(part, part, part)


def _kept() -> ranges.Kept:
    pieces = _pieces(KEY_CLUSTERS, ranges.PIECE).block.shape[2]
    return ranges.Kept(
        _empty(1, HEADS, QUERY_CLUSTERS, pieces, dtype=torch.int32),
        _empty(1, HEADS, QUERY_CLUSTERS, dtype=torch.int32),
    )


def _keep() -> Tensor:
    return _empty(1, HEADS, QUERY_CLUSTERS, KEY_CLUSTERS, dtype=torch.bool)


def _ranges() -> Launch:
    return ranges.plan_launch(_pieces(KEY_CLUSTERS, ranges.PIECE), _keep(), _kept())


def _attention(
    architecture: int,
    size: int,
    dtype: torch.dtype,
    *,
    kept: bool,
    means: bool,
    lse: bool = False,
    ordered: bool = True,
) -> Launch:
    tile = attention_tile(architecture, dtype)
    tokens, order = _tokens(size, dtype), _empty(1, HEADS, TOKENS, dtype=torch.int64)
    mean = _empty(1, HEADS, KEY_CLUSTERS, size, dtype=dtype)
    log_size = _empty(1, HEADS, KEY_CLUSTERS, dtype=torch.float32)
    sums = _empty(1, HEADS, TOKENS, dtype=torch.float32)
    return sparse.plan_launch(
        tokens,
        tokens,
        tokens,
        tokens,
        sums if lse or not kept else None,  # compensation alone is there to be merged
        orders=(order, order) if ordered else (None, None),
        query_pieces=_pieces(QUERY_CLUSTERS, tile.rows),
        kept=_kept() if kept else None,
        means=sparse.Means(mean, mean, log_size) if means else None,
        keep=_keep(),
        scale=size**-0.5,
        tile=tile,
    )


def _assign(size: int, dtype: torch.dtype) -> Launch:
    return assign.plan_launch(
        _tokens(size, dtype),
        _empty(1, HEADS, KEY_CLUSTERS, size, dtype=dtype),
        _empty(1, HEADS, KEY_CLUSTERS, dtype=torch.float32),
        _empty(1, HEADS, TOKENS, dtype=torch.int64),
        assignment_tile(dtype),
    )


def _means(size: int, dtype: torch.dtype) -> Launch:
    return centroids.plan_launch(
        _tokens(size, dtype),
        _empty(1, HEADS, TOKENS, dtype=torch.int64),
        _empty(1, HEADS, KEY_CLUSTERS, dtype=torch.int64),
        _empty(1, HEADS, KEY_CLUSTERS, size, dtype=torch.float32),
    )


def flops() -> dict[str, float]:
    """Count the floating-point operations of one iteration of co-clustering for one head, ours
    and in the form with affinity matrices, both with our tiles.

    That form takes two passes a side: tokens x the other side's centroids x D, then tokens x own
    centroids x the other side's.
    """
    tile = assignment_tile(torch.bfloat16)
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
    columns = ("name", "arch", "head_dim", "dtype", "registers", "spills", "shared", "occupancy")
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
