import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from making import Case, cases, normal
from torch.nn.functional import scaled_dot_product_attention

from svoo import BlockPlan, FarTerms, MeanTerms, run_plan
from svoo.backends.reference import block_means
from svoo.core.terms import compensated


def one_query_by_hand(
    q: torch.Tensor, case: Case, plan: BlockPlan, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """The first query token of batch 0, head 0, term by term."""
    row = int(plan.query_blocks()[0, 0, 0])
    columns = plan.key_blocks()[0, 0]
    marked = compensated(plan.terms)
    terms = []  # (logit, value)
    for block in range(case.key_blocks):
        members = (columns == block).nonzero().flatten()
        if not len(members):
            continue
        if bool(plan.keep[0, 0, row, block]):
            terms += [(q @ k[j] / math.sqrt(case.size), v[j]) for j in members]
        elif marked is not None and bool(marked[0, 0, block]):
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
    plan = BlockPlan(
        None, None, torch.tensor([5, 4]).expand(2, 2, 2), sizes, keep, MeanTerms(keep[:, :, 0])
    )
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
        torch.zeros(1, 1, 6).long(), labels, keep, MeanTerms(torch.ones(1, 1, 4, dtype=torch.bool))
    )
    output = run_plan(query, key, value, plan, backend="reference")
    torch.testing.assert_close(output, scaled_dot_product_attention(query, key, value))


@given(case=cases(), groups=st.integers(0, 3), ordered=st.booleans())
def test_far_terms_term_by_term(case: Case, groups: int, ordered: bool) -> None:
    """Every query token of the last batch and head, with all terms listed one by one."""
    query, key, value = case.tokens(torch.float64)
    plan = case.far_plan(groups=groups, ordered=ordered, dtype=torch.float64)
    output, lse = run_plan(query, key, value, plan, backend="reference", return_lse=True)
    assert isinstance(plan.terms, FarTerms) and lse is not None
    head = (case.batch - 1, case.heads - 1)
    columns, scale = plan.key_blocks()[head], 1 / math.sqrt(case.size)
    for token, row in enumerate(plan.query_blocks()[head].tolist()):
        q = query[head][token]
        rows = []  # (logit, value)
        for block in range(case.key_blocks):
            keys, values = (side[head][columns == block] for side in (key, value))
            if bool(plan.keep[head][row, block]):
                rows += [(q @ k * scale, v) for k, v in zip(keys, values, strict=True)]
            elif bool(plan.terms.middle[head][row, block]) and len(keys):
                logit = q @ keys.mean(dim=0) * scale + plan.terms.bias[head][row, block]
                rows.append((logit, plan.terms.value[head][row, block]))
        for group in range(groups):
            far = plan.terms.groups
            assert far is not None
            logit = q @ far.key[head][row, group] * scale + far.bias[head][row, group]
            rows.append((logit, far.value[head][row, group]))
        rows = [(logit, v) for logit, v in rows if logit > -math.inf]  # false for what is not read
        logits = torch.stack([logit for logit, _ in rows])
        expected = logits.softmax(dim=0) @ torch.stack([v for _, v in rows])
        torch.testing.assert_close(output[head][token], expected)
        torch.testing.assert_close(lse[head][token], logits.logsumexp(dim=0))


def test_far_terms_round_the_mean_key_as_the_tokens_are() -> None:
    case = Case(1, 1, 5, 9, 8, 1, 2, seed=1)
    query, key, value = case.tokens(torch.bfloat16)
    plan = case.far_plan(dtype=torch.bfloat16)
    assert isinstance(plan.terms, FarTerms)
    means = block_means(key.float(), plan).bfloat16().float()
    keep = plan.to_dense_mask()
    logits = (query.float() @ key.float().mT).masked_fill(~keep, -torch.inf)
    terms = (query.float() @ means.mT) + plan.terms.bias
    terms = terms.masked_fill(~plan.terms.enters(plan.key_sizes), -torch.inf)
    exact = torch.cat((logits, terms), dim=-1).logsumexp(dim=-1)
    found = run_plan(query, key, value, plan, backend="reference", scale=1.0, return_lse=True)
    assert found.lse is not None
    assert torch.equal(found.lse, exact)


def test_far_terms_of_one_query_per_block_lose_nothing() -> None:
    """Where a query block is one token, bias and value as that token sees them are exact."""
    query, key, value = (normal(1, 1, 6, 8, seed=seed, dtype=torch.float64) for seed in range(3))
    keep = torch.tensor([True, False, False]).expand(1, 1, 6, 3)
    sizes = torch.full((1, 1, 3), 2)
    pairs = key.view(1, 1, 1, 3, 2, 8)
    logits = (query.view(1, 1, 6, 1, 1, 8) * pairs).sum(dim=-1) / math.sqrt(8)
    centre = (query.unsqueeze(3) * pairs.mean(dim=4)).sum(dim=-1) / math.sqrt(8)
    bias = (logits.logsumexp(dim=-1) - centre).float()
    seen = (logits.softmax(dim=-1).unsqueeze(-1) * value.view(1, 1, 1, 3, 2, 8)).sum(dim=4)
    ones = torch.ones(1, 1, 6, dtype=torch.int64)
    plan = BlockPlan(None, None, ones, sizes, keep, FarTerms(~keep, bias, seen))
    output = run_plan(query, key, value, plan, backend="reference")
    dense = scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(output, dense, atol=1e-6, rtol=1e-6)
