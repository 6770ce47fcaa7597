"""What the kernels share: a launch that can be run or only compiled, and a product of tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from svoo.kernels.triton.tiles import Tile


@dataclass(frozen=True)
class Launch:
    """A kernel with all its arguments: `run` it, or give it to `tools.kernel_report` to compile.

    The arguments hold tensors; on the device "meta" they are good for compiling only.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, object]
    warps: int
    stages: int

    def run(self) -> None:
        """Start the kernel on the device of its tensors; does not wait for it."""
        tensor = next(value for value in self.arguments.values() if isinstance(value, Tensor))
        with torch.cuda.device_of(tensor):
            self.kernel[self.grid](**self.arguments, **self.options)

    @property
    def options(self) -> dict[str, int | bool]:
        """What the compiler is told beside the arguments."""
        # Asked for, because Triton 3.9 warns where the default decides, and 3.10 changes it.
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}


def interpreted() -> bool:
    """Return whether kernels run in Triton's interpreter, on the CPU."""
    return bool(triton.knobs.runtime.interpret)


def products(tile: Tile) -> str:
    """Return how a kernel multiplies tiles, see `multiply`."""
    return "upcast" if interpreted() else tile.products


def padded(head_size: int) -> int:
    """Return the width of a tile that holds a head: a power of two, and at least what a tensor
    core takes."""
    return max(16, 1 << (head_size - 1).bit_length())


@triton.jit
def multiply(a, b, PRODUCTS: tl.constexpr):
    """Return the product of two tiles in float32.

    `PRODUCTS` says how float32 tiles are multiplied; others have one way. "upcast" is for the
    interpreter, which would multiply the bits of bfloat16 numbers.
    """
    if PRODUCTS == "upcast":
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    if a.dtype == tl.float32:
        return tl.dot(a, b, input_precision=PRODUCTS)
    return tl.dot(a, b)
