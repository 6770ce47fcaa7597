"""Whether a sparse call can pay on a GPU: starting its kernels takes the host longer than a small
dense call takes the device."""

from __future__ import annotations

import torch
from torch import Tensor

LAUNCHES = 500
"""Kernels that planning and attention start for a group of heads (`tests/test_real_sizes.py`)."""
_SECONDS_PER_LAUNCH = 5e-6
_CLOCK = 1.7e9  # cycles per second; cards differ by a third
_USED = 0.7  # of the tensor cores, by torch's attention
_OPERATIONS = {(8, 0): 2048, (8, 6): 512, (8, 9): 512, (9, 0): 4096, (10, 0): 8192, (12, 0): 512}
"""bfloat16 operations of a multiprocessor per cycle, by compute capability; that or the next
older one counts."""


def why_dense_pays(query: Tensor, key: Tensor, heads: int) -> str | None:
    """Return why a call on query `[B, h, N, D]` and key `[B, h, M, D]` should stay dense, or None.

    A rough estimate from tokens, heads and the device; never waits for it. `heads` are those of
    all devices: the same video is made on however many of them. On a CPU there is nothing to
    start.
    """
    if query.device.type != "cuda" or torch.version.hip is not None:
        return None
    host = LAUNCHES * _SECONDS_PER_LAUNCH
    batch, _, length, size = query.shape
    dense = 4 * batch * heads * length * size * key.shape[2] / _rate(query.device)
    if dense > host:
        return None
    return (
        f"too small for this GPU: dense attention of {length:,} tokens in "
        f"{batch * heads} heads takes about {1e3 * dense:.1f} ms, starting a "
        f"sparse call's kernels {1e3 * host:.1f} ms"
    )


def _rate(device: torch.device) -> float:
    """Return the operations per second of dense attention, estimated."""
    own = torch.cuda.get_device_capability(device)
    known = max((one for one in _OPERATIONS if one <= own), default=(8, 0))
    count = torch.cuda.get_device_properties(device).multi_processor_count
    return count * _CLOCK * _OPERATIONS[known] * _USED
