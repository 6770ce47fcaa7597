"""Sliding Tile Attention's windows by step, layer and head: chosen from measured errors, and
stored as a profile is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from svoo.errors import ProfileError
from svoo.storage import write_atomically


@dataclass(frozen=True, eq=False)
class WindowTable:
    """windows uint8 `[steps, layers, heads, 3]`: tiles along frames, height, width. Layers of two
    experts are told apart by their steps."""

    windows: Tensor

    def __post_init__(self) -> None:
        """Refuse what are no windows."""
        windows = self.windows
        fits = windows.ndim == 4 and windows.shape[3:] == (3,) and 0 not in windows.shape
        if not fits or windows.is_floating_point() or windows.is_complex():
            raise ProfileError(
                "windows must be whole numbers [steps, layers, heads, 3], got "
                f"{windows.dtype} {list(windows.shape)}"
            )
        low, high = (int(extreme) for extreme in windows.aminmax())
        if low < 1 or high > 255:
            raise ProfileError(f"windows must have 1 to 255 tiles per axis, got {low} to {high}")
        object.__setattr__(self, "windows", windows.to("cpu", torch.uint8).contiguous())

    def at(self, step: int, steps: int, layer: int) -> Tensor:
        """Return the windows `[heads, 3]` of a layer at a step of a run of `steps`; another number
        of steps than the table's takes the row at the same fraction of the run."""
        stored, layers = self.windows.shape[:2]
        if layer >= layers:
            raise ProfileError(
                f"the windows are for {layers} layers, and layer {layer} (from 0) was asked for"
            )
        row = step if steps == stored else int((step + 0.5) / steps * stored)
        return self.windows[min(row, stored - 1), layer]

    def save(self, path: str | Path) -> None:
        """Write one .safetensors file, whole or not at all."""
        write_atomically(Path(path), save_tensors({"windows": self.windows}))

    @classmethod
    def load(cls, path: str | Path) -> WindowTable:
        """Read what `save` wrote; anything else is refused with what is wrong."""
        try:
            tensors = load_tensors(Path(path).read_bytes())
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise ProfileError(f"cannot read windows from {path}: {error}") from error
        if "windows" not in tensors:
            raise ProfileError(f"{path} is a .safetensors file, but has no windows")
        return cls(tensors["windows"])


def search_windows(
    losses: Tensor,
    candidates: Sequence[tuple[int, int, int]],
    full: tuple[int, int, int],
    dense_steps: int,
) -> WindowTable:
    """Choose the window with the least error for every step, layer and head.

    losses `[inputs, candidates, steps, layers, heads]`: error of the attention output with each
    candidate (`svoo.methods.sta_search` measures it); their mean over inputs counts, of equal ones
    the first. The first `dense_steps` get the `full` window, which covers the grid.
    """
    if losses.ndim != 5 or losses.shape[1] != len(candidates) or 0 in losses.shape:
        raise ProfileError(
            f"losses must be [inputs, {len(candidates)} candidates, steps, layers, heads], got "
            f"{list(losses.shape)}"
        )
    windows = torch.tensor(list(candidates))[losses.double().mean(dim=0).argmin(dim=0)]
    windows[:dense_steps] = torch.tensor(full)
    return WindowTable(windows)
