"""Tile sizes by architecture: the largest that compile without spills, see docs/kernels.md."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

Architecture = int | str
"""A compute capability as one number (90 for 9.0), or the name of an AMD architecture."""


@dataclass(frozen=True)
class Tile:
    """How much one program holds at a time: `rows` tokens against `columns` others, and how it is
    run.

    `stages` is the depth of the pipeline over tiles of `columns`: loads that depend on one another
    share it. `products` is how float32 tiles are multiplied.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    products: str = "tf32x3"


def attention_tile(architecture: Architecture, dtype: torch.dtype) -> Tile:
    """Return the tile of the sparse attention: query rows against key columns."""
    if isinstance(architecture, str):  # 64 KB of shared memory, and no tf32
        if dtype == torch.float32:
            return Tile(32, 32, warps=4, stages=1, products="ieee")
        if architecture.startswith("gfx9"):
            return Tile(128, 32, warps=8, stages=2, products="ieee")
        return Tile(64, 32, warps=8, stages=1, products="ieee")
    if dtype == torch.float32:
        return Tile(32, 32, warps=8, stages=2)
    if architecture in (90, 100, 103):  # operands come from shared memory: registers stay free
        return Tile(128, 64, warps=8, stages=7)
    return Tile(128, 32, warps=8, stages=7)


def assignment_tile(architecture: Architecture, dtype: torch.dtype, size: int = 128) -> Tile:
    """Return the tile of the assignment: token rows against centroid columns, `size` numbers
    each."""
    if isinstance(architecture, str):
        return Tile(64, 64, warps=4, stages=1, products="ieee")
    if dtype == torch.float32:
        few = size <= 16  # features: rows take few registers
        return Tile(128, 32, warps=4, stages=2) if few else Tile(32, 64, warps=8, stages=2)
    return Tile(128, 32 if architecture == 120 else 64, warps=8, stages=3)


def far_field_tile(architecture: Architecture, dtype: torch.dtype) -> Tile:
    """Return the tile of the far-field pass: query centroids against the keys of one block."""
    tile = attention_tile(architecture, dtype)
    rows = min(tile.rows, 64) if architecture == 120 else tile.rows
    return replace(tile, rows=rows, stages=min(5, tile.stages))


def architecture_of(device: torch.device) -> Architecture:
    """Return the architecture of a device; 80 for the interpreter."""
    if device.type != "cuda":
        return 80
    if torch.version.hip is not None:  # its tensors say "cuda" too
        name: str = torch.cuda.get_device_properties(device).gcnArchName
        return name.partition(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
