"""Triton kernels: assignment, centroids, block-sparse attention. Importing this imports no Triton.

Each has a slow definition in torch that it is tested against: in Triton's interpreter, and on a
GPU where there is one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from svoo.core.needs import Needs, Package

NEEDS = Needs(
    device="cuda",
    capability=(8, 0),  # the first architecture with bfloat16 and asynchronous copies
    dtypes=(torch.bfloat16, torch.float16, torch.float32),
    largest_head=128,
    package=Package("triton", "triton", "pip install 'svoo[gpu]'"),
)


def why_no_kernels(tokens: Tensor) -> str | None:
    """Return why the kernels cannot run on tokens `[B, H, N, D]`, or None if they can."""
    return NEEDS.why_not(tokens)
