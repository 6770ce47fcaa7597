import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import normal
from torch import Tensor

from svoo.core import axes as axes_module
from svoo.core.axes import iterate_axes, main_axes


def captured(moments: Tensor, axes: Tensor) -> Tensor:
    """The variance along axes, of all that there is."""
    total = moments.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return (axes.mT @ moments @ axes).diagonal(dim1=-2, dim2=-1).sum(dim=-1) / total


@given(
    size=st.integers(1, 40),
    count=st.integers(4, 16),
    decay=st.floats(0.05, 0.9),
    seed=st.integers(0, 999),
)
def test_iterated_axes_catch_what_eigenvectors_do(
    size: int, count: int, decay: float, seed: int
) -> None:
    tokens = normal(2, 3, 200, size, seed=seed) * decay ** torch.arange(size)
    tokens = tokens @ torch.linalg.qr(normal(size, size, seed=seed + 1)).Q
    moments = tokens.mT @ tokens
    best = main_axes(moments, count)
    found = iterate_axes(moments, min(count, size))
    assert found.shape == best.shape
    # Axes that vary nearly alike are told apart slowly, and mixing those loses little.
    assert bool((captured(moments, found) > 0.9 * captured(moments, best)).all())
    products = found.mT @ found  # orthonormal, but for what rounding hides
    wide = (found.mT @ moments @ found).diagonal(dim1=-2, dim2=-1)
    real = wide > 3e-3 * wide.amax(dim=-1, keepdim=True)
    apart = (products - torch.eye(found.shape[-1])).abs()
    apart = apart * real.unsqueeze(-1) * real.unsqueeze(-2)
    assert float(apart.amax()) < 1e-2


def test_tokens_that_are_all_alike_have_no_axes_and_no_nan() -> None:
    found = iterate_axes(torch.zeros(2, 8, 8), 4)
    assert bool(torch.isfinite(found).all())


def test_a_broken_token_ends_no_run() -> None:
    moments = torch.eye(8).repeat(2, 1, 1)
    moments[1, 3, 3] = torch.nan
    found = main_axes(moments, 4)
    assert bool(torch.isfinite(found[0]).all())


def test_eigenvectors_are_left_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU torch waits for them."""
    monkeypatch.setattr(torch.linalg, "eigh", None)
    moments = torch.empty(3, 2, 8, 8, device="meta")
    assert axes_module.main_axes(moments, 4).shape == (3, 2, 8, 4)
