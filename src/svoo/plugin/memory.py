"""Whether a video can fit into memory at all, asked before a model is loaded; and memory that
stays with the process."""

from __future__ import annotations

import ctypes
import os

import torch

from svoo.catalogue import Model
from svoo.errors import ConfigError
from svoo.plugin.request import DTYPES, Request, count_tokens, video_shape

_KEPT = 4  # query, key, value and output of one attention are there at once
_KEEP = 1 << 30  # bytes of freed memory that stay with the process
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # glibc's names for two of its settings
_FRAMES = 2 * 3 * 4  # bytes per pixel: the decoded video in float32, and as it is handed over


def least_bytes(request: Request, model: Model | None) -> int:
    """Return the fewest bytes that a video of this size needs beside the model: its pixels, and
    the tokens of one attention; 0 where its size is not known."""
    shape = video_shape(request, model)
    if shape is None:
        return 0
    frames, height, width = shape
    pixels = frames * height * width * _FRAMES
    tokens = count_tokens(request, model)
    if tokens is None or model is None:
        return pixels
    size = DTYPES[request.dtype or "bfloat16"].itemsize
    return pixels + _KEPT * tokens * model.heads * model.head_dim * size


def total_bytes(device: torch.device) -> int | None:
    """Return the memory of a device, or None where nobody tells."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def check_memory(request: Request, model: Model | None) -> None:
    """Refuse a video that cannot fit, however much else is moved away."""
    name = request.device or ("cuda" if torch.cuda.is_available() else "cpu")
    needed, total = least_bytes(request, model), total_bytes(torch.device(name))
    if total is not None and needed > total:
        shape = video_shape(request, model) or (0, 0, 0)
        raise ConfigError(
            f"a video of {shape[0]} frames of {shape[2]} x {shape[1]} pixels needs at least "
            f"{needed / 1e9:,.0f} GB beside the model, and {name} has {total / 1e9:,.0f} GB: ask "
            "for fewer frames or pixels"
        )


def keep_freed_memory() -> bool:
    """Let glibc keep memory that was freed, up to a gigabyte, and say whether it does.

    It gives large arrays back to the system else, which hands them out anew, cleared page by
    page, at every layer of a model. For programs of our own: it counts for the whole process.
    """
    try:
        change = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # not Linux with glibc
        return False
    return all(change(name, _KEEP) == 1 for name in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))
