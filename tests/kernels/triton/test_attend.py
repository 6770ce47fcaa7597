import pytest
import torch
from attending import ROUNDING, SMALL, assert_exact, attend
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, examples

from svoo.kernels.triton.tiles import Tile

pytestmark = pytest.mark.usefixtures("fresh_memory_is_nan")


@pytest.mark.parametrize("compensate", [False, True])
@settings(max_examples=examples(100))
@given(
    case=cases(sizes=(5, 32, 64, 80, 96, 128)),
    dtype=st.sampled_from(tuple(ROUNDING)),
    ordered=st.booleans(),
    scale=st.sampled_from((0.0, 0.2)),
    tile=st.sampled_from((SMALL, Tile(32, 16, 4, 1), Tile(64, 64, 4, 1))),
)
def test_it_is_the_reference(
    kernel_device: torch.device,
    case: Case,
    dtype: torch.dtype,
    compensate: bool,
    ordered: bool,
    scale: float,
    tile: Tile,
) -> None:
    tokens = case.tokens(dtype)
    plan = case.plan(compensate=compensate, ordered=ordered)
    got = attend(tokens, plan, kernel_device, scale=scale, tile=tile)
    assert got.output.dtype == dtype
    assert_exact(got, tokens, plan, scale, kernel_device)


@pytest.mark.parametrize("groups", [0, 3])
@settings(max_examples=examples(25))
@given(
    case=cases(sizes=(5, 32, 96)),
    dtype=st.sampled_from(tuple(ROUNDING)),
    ordered=st.booleans(),
)
def test_far_terms_are_rows_of_the_same_softmax(
    kernel_device: torch.device, case: Case, dtype: torch.dtype, groups: int, ordered: bool
) -> None:
    """Rows that no query block reads are NaN in these plans."""
    tokens = case.tokens(dtype)
    plan = case.far_plan(groups=groups, ordered=ordered, dtype=dtype)
    got = attend(tokens, plan, kernel_device)
    assert_exact(got, tokens, plan, 0.2, kernel_device)


def test_a_large_case_with_the_default_tile(kernel_device: torch.device) -> None:
    case = Case(2, 3, 300, 430, 128, 4, 20, seed=3)
    tokens, plan = case.tokens(torch.bfloat16), case.plan(compensate=True)
    got = attend(tokens, plan, kernel_device, tile=None)
    assert_exact(got, tokens, plan, 0.2, kernel_device)
