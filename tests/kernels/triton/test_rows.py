import pytest
import torch
from attending import ROUNDING
from hypothesis import given, settings
from making import Case, cases, examples, plan_on

from svoo.backends.reference import block_means
from svoo.kernels.triton.rows import TermRows, find_rows


@settings(max_examples=examples(20))
@given(case=cases(sizes=(8,)))
def test_mean_terms_enter_where_blocks_are_left_out(
    kernel_device: torch.device, case: Case
) -> None:
    plan = plan_on(kernel_device, case.plan(compensate=True))
    _, key, value = (tokens.to(kernel_device) for tokens in case.tokens())
    rows = find_rows(key, value, plan)
    blocks = rows.blocks
    assert blocks is not None and rows.groups is None
    torch.testing.assert_close(blocks.key, block_means(key, plan))
    torch.testing.assert_close(blocks.value, block_means(value, plan))
    marked = plan.terms.compensate & (plan.key_sizes > 0)  # type: ignore[union-attr]
    enters = ~plan.keep & marked.unsqueeze(2)
    assert torch.equal(blocks.bias > -torch.inf, enters)
    found = torch.zeros_like(enters)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, enters.shape[:3])).view(-1, 3).tolist():
        count = int(blocks.entered.counts[b, h, i])
        found[b, h, i, blocks.entered.entries[b, h, i, :count].long() // 2] = True
    assert torch.equal(found, enters)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_means_are_rounded_to_the_nearest(kernel_device: torch.device, dtype: torch.dtype) -> None:
    """Half of the last bit at most, where cutting off would lose a whole one."""
    case = Case(1, 2, 9, 200, 32, 2, 7, seed=4)
    plan = plan_on(kernel_device, case.plan(compensate=True))
    _, key, value = (tokens.to(kernel_device) for tokens in case.tokens(dtype))
    blocks = find_rows(key, value, plan).blocks
    assert blocks is not None
    for means, tokens in ((blocks.key, key), (blocks.value, value)):
        wide = block_means(tokens.double(), plan)
        apart = (means.double() - wide).abs()
        assert bool((apart <= ROUNDING[dtype] * wide.abs() + 1e-6).all())


def test_a_plan_without_terms_has_no_rows() -> None:
    plan = Case(1, 1, 9, 9, 8, 2, 3, seed=0).plan(compensate=False)
    _, key, value = Case(1, 1, 9, 9, 8, 2, 3, seed=0).tokens()
    assert find_rows(key, value, plan) == TermRows()
    assert set(TermRows().arguments().values()) == {None, 0}
