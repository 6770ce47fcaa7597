"""What compilers make of a kernel launch, without a GPU: registers, spills, shared memory, how far
loads run ahead, and the instructions of its main loop."""

from __future__ import annotations

import io
import re
import subprocess
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from svoo.errors import BackendUnavailableError
from svoo.kernels.triton.launch import Launch
from svoo.kernels.triton.tiles import Architecture

TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.bool: "i1",
}
_PRODUCTS = ("HMMA", "HGMMA", "UTCHMMA")


@dataclass(frozen=True)
class Code:
    """One compiled kernel. `spills` are bytes a thread stores and loads (AMD: registers).

    `buffers` is the least number of tiles that its pipelined loops over kept keys have room for,
    and `pending` the most copies that may be under way while it computes; None: no such loop.
    `instructions` are those of its first loop with tensor-core instructions, `products` how many
    of them are such; None on AMD, or without such a loop.
    """

    registers: int
    spills: int
    shared: int
    buffers: int | None
    pending: int | None
    instructions: int | None
    products: int | None


def compile_launch(launch: Launch, architecture: Architecture) -> Code:
    """Compile a launch for an architecture and read its code."""
    compiled, log = _compile(launch, architecture)
    shared = int(compiled.metadata.shared)
    if isinstance(architecture, str):
        code = compiled.asm["amdgcn"]
        registers = _read(r"\.vgpr_count:\s+(\d+)", code)
        spills = _read(r"\.vgpr_spill_count:\s+(\d+)", code)
        return Code(registers, spills, shared, None, None, None, None)
    registers = _read(r"Used (\d+) registers", log)
    spills = _read(r"(\d+) bytes spill stores", log) + _read(r"(\d+) bytes spill loads", log)
    middle = compiled.asm["ttgir"]
    # Pipelined tiles of keys and values: buffers x columns x head size, those of the first loop.
    width = launch.arguments.get("WIDTH")
    tiles = re.findall(rf"local_alloc[^\n]*memdesc<(\d+)x(\d+)x{width}x\w+, [^\n]*mutable", middle)
    waits = [int(number) for number in re.findall(r"async_wait[^\n]*num = (\d+)", middle)]
    instructions, products = _first_loop(_disassemble(compiled.asm["cubin"]))
    return Code(
        registers,
        spills,
        shared,
        min((int(count) for count, _ in tiles[:2]), default=None),
        max(waits, default=None),
        instructions,
        products,
    )


def _compile(launch: Launch, architecture: Architecture) -> tuple[Any, str]:
    """Return what Triton compiles, and what the assembler says."""
    kernel = launch.kernel
    types: dict[str, str] = {}
    constants: dict[tuple[int, ...], object] = {}
    hints: dict[tuple[int, ...], list[list[object]]] = {}
    for index, parameter in enumerate(kernel.params):
        value = launch.arguments[parameter.name]
        # As a launch would: None and 1 are constants, pointers and multiples of 16 are aligned.
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
            types[parameter.name] = "constexpr"
            constants[(index,)] = value
            continue
        types[parameter.name] = _type_name(value)
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
            hints[(index,)] = [["tt.divisibility", 16]]
    said = io.StringIO()
    with (
        triton.knobs.compilation.scope(),
        triton.knobs.nvidia.scope(),
        redirect_stdout(said),
    ):
        triton.knobs.compilation.always_compile = True  # a cached kernel has no log
        triton.knobs.nvidia.dump_ptxas_log = True
        source = ASTSource(kernel, types, constants, hints)
        compiled = triton.compile(source, target=_target(architecture), options=launch.options)
    return compiled, said.getvalue()


def _target(architecture: Architecture) -> GPUTarget:
    if isinstance(architecture, int):
        return GPUTarget("cuda", architecture, 32)
    return GPUTarget("hip", architecture, 64 if architecture.startswith("gfx9") else 32)


def _type_name(value: object) -> str:
    if isinstance(value, Tensor):
        return f"*{TYPES[value.dtype]}"
    if isinstance(value, int):
        return "i32" if value < 1 << 31 else "i64"
    return "fp32"


def _read(pattern: str, log: str) -> int:
    found = re.search(pattern, log)
    if found is None:
        raise BackendUnavailableError(f"the assembler's log has no {pattern!r}: {log[-500:]!r}")
    return int(found[1])


def _disassemble(binary: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(tool), "-c", file.name]
        # It warns of the file's format, which it reads all the same.
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


def _first_loop(assembly: str) -> tuple[int | None, int | None]:
    """Return the number of instructions of the first loop that multiplies tiles, and how many of
    them do."""
    labels: dict[str, int] = {}
    code: list[tuple[str, str]] = []
    for line in assembly.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(code)
        found = re.match(r"\s*(?:/\*\w+\*/)?\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)(.*?);", line)
        if found:
            code.append((found[1], found[2]))
    for index, (name, rest) in enumerate(code):
        target = re.search(r"\.L_x_\d+", rest) if name.startswith("BRA") else None
        if target is not None and labels.get(target[0], len(code)) <= index:
            body = code[labels[target[0]] : index + 1]
            products = sum(name.startswith(_PRODUCTS) for name, _ in body)
            if products:
                return len(body), products
    return None, None
