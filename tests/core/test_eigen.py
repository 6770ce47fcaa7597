"""Eigenvectors are torch's; a matrix with NaN or infinity does not spoil the others."""

import pytest
import torch
from making import normal

from svoo.core.eigen import eigen, low_rank_root


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


def test_low_rank_root() -> None:
    rows = normal(1, 2, 30, 6, dtype=torch.float64)
    moment = rows.transpose(2, 3) @ rows
    full = low_rank_root(moment, 9)
    torch.testing.assert_close(full @ full.transpose(2, 3), moment)
    part = low_rank_root(moment, 2)
    left = torch.linalg.svdvals(moment - part @ part.transpose(2, 3))
    expected = torch.linalg.svdvals(moment)[..., 2:]
    torch.testing.assert_close(left[..., :4], expected)
