"""Triton kernels: assignment, centroids, block-sparse attention. Importing this imports no Triton.

Each has a slow definition in torch that it is tested against: in Triton's interpreter, and on a
GPU where there is one.
"""

from __future__ import annotations

from functools import cache
from importlib import util

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LARGEST_HEAD = 128
find_spec = cache(util.find_spec)  # it looks into folders, and every call asks
OLDEST = (8, 0)  # the first architecture with bfloat16 and asynchronous copies


def why_no_kernels(tokens: Tensor) -> str | None:
    """Return why the kernels cannot run on tokens `[B, H, N, D]`, or None if they can."""
    if find_spec("triton") is None:
        return "needs triton, which is not installed: pip install 'svoo[gpu]'"
    if tokens.device.type != "cuda":
        return f"needs a CUDA tensor, got {tokens.device}"
    capability = torch.cuda.get_device_capability(tokens.device)
    if capability < OLDEST:
        wanted, got = (".".join(map(str, version)) for version in (OLDEST, capability))
        return f"needs compute capability {wanted} or newer, got {got}"
    if tokens.dtype not in DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        return f"runs {names}, got {str(tokens.dtype).removeprefix('torch.')}"
    if tokens.shape[-1] > LARGEST_HEAD:
        return f"runs head sizes up to {LARGEST_HEAD}, got {tokens.shape[-1]}"
    return None
