"""Kernels for the CPU in C++: attention, assignment, centroids. Importing this compiles nothing.

Each has a slow definition in torch that it is tested against.
"""

from __future__ import annotations

import torch
from torch import Tensor

from svoo.core.needs import Needs
from svoo.kernels.cpp.build import why_no_library

NEEDS = Needs(
    device="cpu", dtypes=(torch.float32, torch.bfloat16), tool="a C++ compiler at the first use"
)
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def why_no_cpp(tokens: Tensor) -> str | None:
    """Return why the kernels cannot run on tokens `[B, H, N, D]`, or None if they can.

    The first question that gets so far compiles them, in about a second.
    """
    return NEEDS.why_not(tokens) or why_no_library()
