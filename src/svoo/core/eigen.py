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
