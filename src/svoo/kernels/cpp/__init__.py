"""Kernels for the CPU in C++: attention, clustering, the far field. Importing this compiles
nothing.

kernels.cpp is what Python calls; attention.h, block_sums.h, clusters.h, features.h, far_field.h
and tiers.h do the work; segment.h is the softmax over rows; tiles.h, products.h and vectors.h are
the arithmetic; calls.h has the structures. Each kernel has a slow definition in torch that it is
tested against.
"""

from __future__ import annotations

import torch
from torch import Tensor

from svoo.core.needs import Needs
from svoo.kernels.cpp.build import load_library, why_no_library

NEEDS = Needs(
    device="cpu", dtypes=(torch.float32, torch.bfloat16), tool="a C++ compiler at the first use"
)
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def why_no_cpp(tokens: Tensor) -> str | None:
    """Return why the kernels cannot run on tokens `[B, H, N, D]`, or None if they can.

    The first question that gets so far compiles them, in about ten seconds.
    """
    return NEEDS.why_not(tokens) or why_no_library()


def why_no_bfloat16_products() -> str | None:
    """Return why products cannot be made in bfloat16, or None if they can; asked where the
    library loads."""
    if load_library().has_bfloat16_products():
        return None
    return "needs a processor with AVX512_BF16"
