import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, normal
from torch import Tensor

from svoo.kernels.cpp.far_field import moments, see_blocks

pytestmark = pytest.mark.compiler
dtypes = st.sampled_from((torch.float32, torch.bfloat16))


def heads(case: Case) -> list[tuple[int, int]]:
    return list(itertools.product(range(case.batch), range(case.heads)))


@settings(max_examples=60)
@given(case=cases(max_tokens=60, sizes=(1, 5, 16, 40)), dtype=dtypes)
def test_moments(case: Case, dtype: torch.dtype) -> None:
    tokens, plan = case.tokens(dtype)[0] + 50, case.plan(compensate=False)
    assert plan.query_order is not None
    found = moments(tokens, plan.query_order, plan.query_sizes)
    labels = plan.query_blocks()
    for b, h in heads(case):
        for cluster in range(case.query_blocks):
            members = tokens[b, h][labels[b, h] == cluster].double()
            mean = members.mean(dim=0) if len(members) else torch.zeros(case.size).double()
            variance = (members - mean).square().sum(dim=0) / max(1, len(members))
            got = found[0][b, h, cluster].double(), found[1][b, h, cluster].double()
            torch.testing.assert_close(got[0], mean, atol=2e-5, rtol=1e-6)
            torch.testing.assert_close(got[1], variance, atol=1e-4, rtol=1e-4)


def definition(
    query_mean: Tensor, key_mean: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """S and V of one query mean and the tokens of one block, in float64, as DESIGN writes them."""
    apart = (key @ query_mean - key_mean @ query_mean) * scale
    return apart.exp().sum().log(), (key @ query_mean * scale).softmax(dim=0) @ value


@settings(max_examples=60)
@given(
    case=cases(max_tokens=60, sizes=(1, 5, 32, 40)),
    dtype=dtypes,
    scale=st.sampled_from((0.0, 0.3, 2.0)),
)
def test_blocks_as_their_query_blocks_see_them(
    case: Case, dtype: torch.dtype, scale: float
) -> None:
    (query, key, value), plan = case.tokens(dtype), case.plan(compensate=False)
    check_blocks(case, (query, key, value), plan.key_blocks(), scale)


@pytest.mark.parametrize("keys", [128, 129, 700])
def test_blocks_that_are_longer_than_a_chunk(keys: int) -> None:
    case = Case(1, 1, 60, keys, 32, 55, 2, seed=keys)
    query, key, value = case.tokens()
    key = key * torch.linspace(0.1, 3, keys).view(1, 1, keys, 1)  # the largest logit comes late
    check_blocks(case, (query, key, value), torch.zeros(1, 1, keys, dtype=torch.int64), 0.5)


def check_blocks(
    case: Case,
    tokens: tuple[Tensor, Tensor, Tensor],
    labels: Tensor,
    scale: float,
) -> None:
    query, key, value = tokens
    order = labels.argsort(dim=-1, stable=True)
    sizes = torch.nn.functional.one_hot(labels, case.key_blocks).sum(dim=2)
    query_mean = query[:, :, : case.query_blocks]
    key_mean = moments(key, order, sizes)[0].to(key.dtype)
    bias, values, lengths = see_blocks(query_mean, key_mean, key, value, order, sizes, scale)
    assert values.dtype == key.dtype
    for b, h in heads(case):
        for i, j in itertools.product(range(case.query_blocks), range(case.key_blocks)):
            members = labels[b, h] == j
            got = bias[b, h, i, j].double(), values[b, h, i, j].double()
            if not bool(members.any()):
                assert float(got[0]) == -math.inf and not bool(got[1].any())
                assert float(lengths[b, h, i, j]) == 0
                continue
            parts = (
                query_mean[b, h, i],
                key_mean[b, h, j],
                key[b, h][members],
                value[b, h][members],
            )
            q, c, k, v = (part.double() for part in parts)
            exact_bias, exact = definition(q, c, k, v, scale)
            slack = 3e-5 if key.dtype == torch.float32 else 1e-2
            torch.testing.assert_close(got[0], exact_bias, atol=1e-4, rtol=1e-5)
            torch.testing.assert_close(got[1], exact, atol=slack, rtol=slack)
            assert math.isclose(float(lengths[b, h, i, j]), float(exact.norm()), abs_tol=2 * slack)


def test_tokens_in_any_layout() -> None:
    tokens = normal(2, 30, 3, 8).transpose(1, 2)
    order = normal(2, 3, 30, seed=1).argsort(dim=-1)
    sizes = torch.tensor([10, 0, 20]).expand(2, 3, 3)
    means, variances = moments(tokens, order, sizes)
    again = moments(tokens.mT.contiguous().mT, order.mT.contiguous().mT, sizes.contiguous())
    assert torch.equal(means, again[0]) and torch.equal(variances, again[1])
    parts = means[:, :, :2], means, tokens, tokens.flip(2), order, sizes
    seen = see_blocks(*parts, 0.5)
    q, c, k, v, o, s = (part.mT.contiguous().mT for part in parts)
    for one, two in zip(seen, see_blocks(q, c, k, v, o, s, 0.5), strict=True):
        assert torch.equal(one, two)


@pytest.mark.usefixtures("two_threads")
def test_threads_agree_with_one() -> None:
    tokens = normal(1, 3, 900, 32)
    order = torch.arange(900).expand(1, 3, 900)
    sizes = torch.full((1, 3, 90), 10)
    two = see_blocks(tokens[:, :, :50], tokens[:, :, :90], tokens, tokens, order, sizes, 0.2)
    torch.set_num_threads(1)
    one = see_blocks(tokens[:, :, :50], tokens[:, :, :90], tokens, tokens, order, sizes, 0.2)
    assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))
