import math

import torch
from hypothesis import given
from making import Case, cases, normal
from torch.nn.functional import scaled_dot_product_attention

from svoo import BlockPlan, run_plan


def one_query_by_hand(
    q: torch.Tensor, case: Case, plan: BlockPlan, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """The first query token of batch 0, head 0, term by term."""
    row = int(plan.query_blocks()[0, 0, 0])
    columns = plan.key_blocks()[0, 0]
    terms = []  # (logit, value)
    for block in range(case.key_blocks):
        members = (columns == block).nonzero().flatten()
        if not len(members):
            continue
        if bool(plan.keep[0, 0, row, block]):
            terms += [(q @ k[j] / math.sqrt(case.size), v[j]) for j in members]
        elif plan.compensate is not None and bool(plan.compensate[0, 0, block]):
            logit = q @ k[members].mean(dim=0) / math.sqrt(case.size) + math.log(len(members))
            terms.append((logit, v[members].mean(dim=0)))
    weights = torch.stack([logit for logit, _ in terms]).softmax(dim=0)
    return sum(
        (w * value for w, (_, value) in zip(weights, terms, strict=True)), torch.zeros(case.size)
    )


@given(case=cases())
def test_compensation_term_by_term(case: Case) -> None:
    query, key, value = case.tokens(torch.float64)
    for compensate in (False, True):
        plan = case.plan(compensate=compensate)
        output = run_plan(query, key, value, plan, backend="reference")
        expected = one_query_by_hand(query[0, 0, 0], case, plan, key[0, 0], value[0, 0])
        torch.testing.assert_close(output[0, 0, 0], expected)


def test_keeping_everything_is_dense_attention() -> None:
    query, key, value = (
        normal(2, 2, 9, 8),
        normal(2, 2, 13, 8, seed=1),
        normal(2, 2, 13, 8, seed=2),
    )
    keep = torch.ones(2, 2, 2, 3, dtype=torch.bool)
    sizes = torch.tensor([4, 0, 9]).expand(2, 2, 3)
    plan = BlockPlan(None, None, torch.tensor([5, 4]).expand(2, 2, 2), sizes, keep, keep[:, :, 0])
    output, lse = run_plan(query, key, value, plan, backend="reference", return_lse=True)
    torch.testing.assert_close(output, scaled_dot_product_attention(query, key, value))
    exact = (query @ key.transpose(2, 3) / math.sqrt(8)).logsumexp(dim=-1)
    torch.testing.assert_close(lse, exact)


def test_blocks_of_equal_keys_lose_nothing_to_compensation() -> None:
    """Where all keys of a block are the same, its mean is no approximation: the output is dense
    attention's."""
    points = normal(1, 1, 4, 8)
    labels = torch.arange(4).repeat_interleave(5).view(1, 1, 20)
    key = points[:, :, labels[0, 0]]
    query, value = normal(1, 1, 6, 8, seed=1), normal(1, 1, 20, 8, seed=2)
    keep = torch.tensor([True, False, False, False]).view(1, 1, 1, 4)
    plan = BlockPlan.from_labels(
        torch.zeros(1, 1, 6).long(), labels, keep, torch.ones(1, 1, 4, dtype=torch.bool)
    )
    output = run_plan(query, key, value, plan, backend="reference")
    torch.testing.assert_close(output, scaled_dot_product_attention(query, key, value))
