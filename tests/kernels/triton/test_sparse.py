from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, examples, far_apart, map_tensors, plan_on
from torch import Tensor

from svoo import BlockPlan, run_plan
from svoo.backends import Attention, reference
from svoo.backends.reference import block_means
from svoo.kernels.triton.ranges import GROUP, cut, keep_pieces
from svoo.kernels.triton.sparse import _longest_first, sparse_attention
from svoo.kernels.triton.tiles import Tile

pytestmark = pytest.mark.usefixtures("fresh_memory_is_nan")

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}  # one ulp
SMALL = Tile(16, 32, warps=1, stages=1)


def attend(
    tokens: tuple[Tensor, Tensor, Tensor],
    plan: BlockPlan,
    device: torch.device,
    *,
    scale: float = 0.2,
    tile: Tile | None = SMALL,
    only_terms: bool = False,
) -> Attention:
    query, key, value = (tensor.to(device) for tensor in tokens)
    plan = plan_on(device, plan)
    output, lse = sparse_attention(
        query,
        key,
        value,
        query_order=plan.query_order,
        key_order=plan.key_order,
        query_sizes=plan.query_sizes,
        key_sizes=plan.key_sizes,
        keep=plan.keep,
        terms=plan.terms,
        scale=scale,
        return_lse=True,
        only_terms=only_terms,
        tile=tile,
    )
    assert lse is not None
    return Attention(output.cpu(), lse.cpu())


def exact(tokens: tuple[Tensor, Tensor, Tensor], plan: BlockPlan, scale: float) -> Attention:
    """The reference in float64, with block means rounded to the tokens' dtype as the kernel has
    them."""
    query, key, value = (tensor.double() for tensor in tokens)

    def rounded_means(wide: Tensor, plan: BlockPlan) -> Tensor:
        return block_means(wide, plan).to(tokens[0].dtype).double()

    with patch.object(reference, "block_means", rounded_means):
        return run_plan(query, key, value, plan, backend="reference", scale=scale, return_lse=True)


def assert_same(got: Attention, expected: Attention, tolerance: float) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one is not None and other is not None
        torch.testing.assert_close(one.double(), other, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("compensate", [False, True])
@settings(max_examples=examples(100))
@given(
    case=cases(sizes=(5, 32, 64, 80, 96, 128)),
    dtype=st.sampled_from(tuple(TOLERANCE)),
    ordered=st.booleans(),
    scale=st.sampled_from((0.0, 0.2)),
    tile=st.sampled_from((SMALL, Tile(32, 16, 1, 1), Tile(64, 64, 1, 1))),
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
    output, lse = exact(tokens, plan, scale)
    # Weights are rounded before they meet the values: the error grows with sum w |v|.
    reach = exact((tokens[0], tokens[1], tokens[2].abs()), plan, scale).output
    limit = TOLERANCE[dtype] * (1 + reach)
    assert bool(((got.output.double() - output).abs() <= limit).all())
    assert got.lse is not None
    torch.testing.assert_close(got.lse.double(), lse, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("groups", [0, 3])
@settings(max_examples=examples(25))
@given(
    case=cases(sizes=(5, 32, 96)),
    dtype=st.sampled_from(tuple(TOLERANCE)),
    ordered=st.booleans(),
)
def test_far_terms_are_rows_of_the_same_softmax(
    kernel_device: torch.device, case: Case, dtype: torch.dtype, groups: int, ordered: bool
) -> None:
    """Rows that no query block reads are NaN in these plans."""
    tokens = case.tokens(dtype)
    tolerance = 2 * TOLERANCE[dtype]  # the interpreter cuts means off where a GPU rounds them
    plan = case.far_plan(groups=groups, ordered=ordered, dtype=dtype)
    got = attend(tokens, plan, kernel_device)
    wide = map_tensors(plan.terms, lambda part: part.double() if part.ndim == 5 else part)
    output, lse = exact(tokens, replace(plan, terms=wide), 0.2)
    groups_by_size = (
        None if wide.groups is None else replace(wide.groups, value=wide.groups.value.abs())
    )
    magnitude = replace(wide, value=wide.value.abs(), groups=groups_by_size)
    absolute = (tokens[0], tokens[1], tokens[2].abs())
    reach = exact(absolute, replace(plan, terms=magnitude), 0.2).output
    assert bool(((got.output.double() - output).abs() <= tolerance * (1 + reach)).all())
    assert got.lse is not None
    torch.testing.assert_close(got.lse.double(), lse, atol=tolerance, rtol=tolerance)


def test_a_large_case_with_the_default_tile(kernel_device: torch.device) -> None:
    case = Case(2, 3, 300, 430, 128, 4, 20, seed=3)
    tokens, plan = case.tokens(torch.bfloat16), case.plan(compensate=True)
    got = attend(tokens, plan, kernel_device, tile=None)
    assert_same(got, exact(tokens, plan, 0.2), TOLERANCE[torch.bfloat16])


@settings(max_examples=examples(20))
@given(case=cases(sizes=(32,)))
def test_compensation_alone_is_what_kept_blocks_lack(
    kernel_device: torch.device, case: Case
) -> None:
    """The two parts, merged by their log-sum-exps, are the whole."""
    tokens, plan = case.tokens(), case.plan(compensate=True)
    means = attend(tokens, plan, kernel_device, only_terms=True)
    plain = BlockPlan(
        plan.query_order, plan.key_order, plan.query_sizes, plan.key_sizes, plan.keep
    )
    kept = exact(tokens, plain, 0.2)
    whole = exact(tokens, plan, 0.2)
    assert means.lse is not None and kept.lse is not None and whole.lse is not None
    share, more = ((lse.double() - whole.lse).exp().unsqueeze(-1) for lse in (kept.lse, means.lse))
    torch.testing.assert_close(share + more, torch.ones_like(share), atol=2e-5, rtol=2e-5)
    merged = share * kept.output + more * means.output
    torch.testing.assert_close(merged, whole.output, atol=2e-5, rtol=2e-5)


def test_compensation_of_nothing(kernel_device: torch.device) -> None:
    case = Case(1, 1, 20, 30, 32, 2, 3, seed=0)
    plan = case.plan(compensate=True)
    everything = BlockPlan(
        None, None, plan.query_sizes, plan.key_sizes, torch.ones_like(plan.keep), plan.terms
    )
    output, lse = attend(case.tokens(), everything, kernel_device, only_terms=True)
    assert output.unique().tolist() == [0.0]
    assert lse is not None
    assert lse.unique().tolist() == [-torch.inf]


def test_strided_tokens_and_offsets_beyond_32_bits(kernel_device: torch.device) -> None:
    case = Case(1, 3, 20, 30, 32, 2, 4, seed=7)
    tokens, plan = case.tokens(torch.bfloat16), case.plan(compensate=True)
    plain = attend(tokens, plan, kernel_device)

    def laid_out(tensor: Tensor, one: int, other: int) -> Tensor:
        return tensor.transpose(one, other).contiguous().transpose(one, other)

    for strided in (
        tuple(laid_out(tensor, 1, 2) for tensor in tokens),  # diffusers'
        tuple(laid_out(tensor, 2, 3) for tensor in tokens),  # each token's numbers apart
    ):
        query, key, value = strided
        got = attend((query, key, value), plan, kernel_device)
        assert torch.equal(got.output, plain.output)
    for far in range(3):  # one at a time: on a GPU each takes 4.3 GB
        sides = [tensor.to(kernel_device) for tensor in tokens]
        sides[far] = far_apart(sides[far])
        got = attend((sides[0], sides[1], sides[2]), plan, kernel_device)
        assert torch.equal(got.output, plain.output)


def test_long_rows_start_first_in_every_head() -> None:
    case = Case(2, 2, 80, 90, 8, 5, 6, seed=2)
    plan = case.plan(compensate=False)
    kept = (plan.keep.long() @ plan.key_sizes.unsqueeze(-1)).squeeze(-1)
    pieces = cut(plan.query_sizes, 16, case.queries)
    ordered = _longest_first(pieces, kept)
    work = kept.gather(-1, ordered.block.long()) * (ordered.size > 0)
    assert bool((work.diff(dim=-1) <= 0).all())
    assert ordered.size.sum(dim=-1).unique().tolist() == [case.queries]


def test_no_kept_list_is_longer_than_its_bound(kernel_device: torch.device) -> None:
    """All keys in blocks of one token: as many pieces as tokens."""
    sizes = torch.ones(1, 1, 40, dtype=torch.int64, device=kernel_device)
    keep = torch.ones(1, 1, 2, 40, dtype=torch.bool, device=kernel_device)
    kept = keep_pieces(cut(sizes, 16, 40), keep)
    assert kept.entries.shape[3] == 40 + GROUP
    assert kept.counts.tolist() == [[[40, 40]]]
