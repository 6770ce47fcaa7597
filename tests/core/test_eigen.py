"""Eigenvectors are torch's; a matrix with NaN or infinity does not spoil the others."""

import pytest
import torch
from making import normal

from svoo.core.eigen import eigen


def test_rebuilds_the_matrix() -> None:
    root = normal(2, 3, 5, 5, seed=0).double()
    moment = root @ root.mT
    values, vectors = eigen(moment)
    torch.testing.assert_close(vectors * values.unsqueeze(-2) @ vectors.mT, moment)
    assert bool((values.diff(dim=-1) >= 0).all())


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_a_broken_matrix_stays_alone(broken: float) -> None:
    root = normal(2, 4, 4, seed=1)
    moment = root @ root.mT
    good = eigen(moment[1:])
    moment[0, 2] = broken
    found = eigen(moment)
    torch.testing.assert_close(found.values[1:], good.values)
    assert bool(found.values.isfinite().all()) and bool(found.vectors.isfinite().all())
