import pytest
import torch
from attending import attend, exact
from hypothesis import given, settings
from making import Case, cases, examples, far_apart
from torch import Tensor

from svoo import BlockPlan
from svoo.kernels.triton.ranges import GROUP, cut, keep_pieces
from svoo.kernels.triton.sparse import _longest_first

pytestmark = pytest.mark.usefixtures("fresh_memory_is_nan")


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
    kept = exact(tokens, plain, 0.2, kernel_device)
    whole = exact(tokens, plan, 0.2, kernel_device)
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
