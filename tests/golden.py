"""Reads what the other methods' own code decided (`../shared/goldens`, see its README)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from svoo import BlockPlan, VideoLayout


class Golden:
    """One file: `meta`, its arrays as tensors, and what they say in token order."""

    def __init__(self, path: Path) -> None:
        stored = dict(np.load(path, allow_pickle=False))
        self.meta: dict[str, Any] = json.loads(str(stored.pop("meta_json")))
        columns = stored.get("keep_cols")
        if columns is not None:
            bits = np.unpackbits(stored["keep_packed"], axis=-1)
            stored["keep"] = bits[..., : int(columns)].astype(bool)
        self.arrays = {name: torch.from_numpy(np.asarray(a)) for name, a in stored.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self.arrays[name]

    @property
    def tokens(self) -> tuple[Tensor, Tensor]:
        """Query and key in float32."""
        return self["q"].float(), self["k"].float()

    @property
    def layout(self) -> VideoLayout:
        return VideoLayout(*self.meta["shape"])

    def mask(self) -> Tensor:
        """Which pairs they compute, bool `[B, H, N, M]` in token order."""
        keep = self["keep"]
        lead = keep.shape[:2]
        parts = [
            self[f"{side}_{part}"].long().expand(*lead, -1)
            for part in ("order", "sizes")
            for side in ("query", "key")
        ]
        return BlockPlan(parts[0], parts[1], parts[2], parts[3], keep).to_dense_mask()
