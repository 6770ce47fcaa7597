"""Kernels for the CPU in C++: attention, assignment, centroids. Importing this compiles nothing.

Each has a slow definition in torch that it is tested against.
"""

from __future__ import annotations

import torch
from torch import Tensor

from svoo.kernels.cpp.build import why_no_library

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def why_no_cpp(tokens: Tensor) -> str | None:
    """Return why the kernels cannot run on tokens `[B, H, N, D]`, or None if they can.

    The first question that gets so far compiles them, in about a second.
    """
    if tokens.device.type != "cpu":
        return f"needs a CPU tensor, got {tokens.device}"
    if tokens.dtype not in DTYPES:
        got = str(tokens.dtype).removeprefix("torch.")
        return f"runs {', '.join(DTYPES.values())}, got {got}"
    return why_no_library()
