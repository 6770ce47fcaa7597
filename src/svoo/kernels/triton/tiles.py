"""Tile sizes by architecture: the largest that compile without spills, see docs/kernels.md."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tile:
    """How much one program holds at a time: `rows` tokens against `columns` others, and how it is
    run."""

    rows: int
    columns: int
    warps: int
    stages: int


def attention_tile(architecture: int, dtype: torch.dtype) -> Tile:
    """Return the tile of the sparse attention: query rows against key columns."""
    if dtype == torch.float32:
        return Tile(32, 32, warps=8, stages=2)
    if architecture in (90, 100):  # operands come from shared memory and leave registers free
        return Tile(128, 64, warps=8, stages=3)
    return Tile(128, 32, warps=8, stages=3)


def assignment_tile(dtype: torch.dtype) -> Tile:
    """Return the tile of the assignment: token rows against centroid columns."""
    if dtype == torch.float32:
        return Tile(32, 64, warps=8, stages=2)
    return Tile(128, 64, warps=8, stages=3)


def architecture_of(device: torch.device) -> int:
    """Return a device's compute capability as one number (90 for 9.0); 80 for the
    interpreter."""
    if device.type != "cuda":
        return 80
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
