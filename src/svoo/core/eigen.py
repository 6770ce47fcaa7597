"""Eigenvectors of second moments that never stop a run."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Eigen(NamedTuple):
    """Eigenvalues `[..., D]`, rising, and the eigenvectors as columns `[..., D, D]`."""

    values: Tensor
    vectors: Tensor


def eigen(moment: Tensor) -> Eigen:
    """Return the eigenvalues and eigenvectors of symmetric matrices `[..., D, D]`.

    NaN and infinity count as 0: torch refuses them, and so a broken token would end the run. So it
    only spoils its own head, as it does in dense attention.
    """
    return Eigen(*torch.linalg.eigh(moment.nan_to_num(0.0, 0.0, 0.0)))


def low_rank_root(moment: Tensor, rank: int) -> Tensor:
    """Return F `[B, H, D, rank]` (D, if that is less) such that F F^T is the part of moments `[B,
    H, D, D]` with the largest eigenvalues."""
    values, vectors = eigen(moment)  # rising
    largest = slice(max(0, moment.shape[-1] - rank), None)
    root: Tensor = vectors[..., largest] * values[..., largest].clamp(min=0).sqrt().unsqueeze(2)
    return root
