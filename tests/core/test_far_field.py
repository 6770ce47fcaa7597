import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, normal, plan_on
from torch import Tensor

from svoo.core.clustering import Implementation
from svoo.core.far_field import (
    Moments,
    expected_error,
    find_moments,
    heads_per_group,
    keep_by_error,
    see_blocks,
    term_weights,
)

on_every_implementation = pytest.mark.parametrize(
    "by", ["torch", pytest.param("cpp", marks=pytest.mark.compiler)]
)
dtypes = st.sampled_from((torch.float32, torch.bfloat16))


def heads(case: Case) -> list[tuple[int, int]]:
    return list(itertools.product(range(case.batch), range(case.heads)))


@on_every_implementation
@settings(max_examples=60)
@given(case=cases(max_tokens=60, sizes=(1, 5, 16, 40)), dtype=dtypes)
def test_moments(by: Implementation, case: Case, dtype: torch.dtype) -> None:
    tokens, plan = case.tokens(dtype)[0] + 50, case.plan(compensate=False)
    assert plan.query_order is not None
    found = find_moments(tokens, plan.query_order, plan.query_sizes, by=by)
    labels = plan.query_blocks()
    for b, h in heads(case):
        for cluster in range(case.query_blocks):
            members = tokens[b, h][labels[b, h] == cluster].double()
            mean = members.mean(dim=0) if len(members) else torch.zeros(case.size).double()
            variance = (members - mean).square().sum(dim=0) / max(1, len(members))
            got = found.mean[b, h, cluster].double(), found.variance[b, h, cluster].double()
            torch.testing.assert_close(got[0], mean, atol=2e-5, rtol=1e-6)
            torch.testing.assert_close(got[1], variance, atol=1e-4, rtol=1e-4)


def definition(
    query_mean: Tensor, key_mean: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """S and V of one query mean and the tokens of one block, in float64, as DESIGN writes them."""
    apart = (key @ query_mean - key_mean @ query_mean) * scale
    return apart.exp().sum().log(), (key @ query_mean * scale).softmax(dim=0) @ value


@on_every_implementation
@settings(max_examples=60)
@given(
    case=cases(max_tokens=60, sizes=(1, 5, 32, 40)),
    dtype=dtypes,
    scale=st.sampled_from((0.0, 0.3, 2.0)),
)
def test_blocks_as_their_query_blocks_see_them(
    by: Implementation, case: Case, dtype: torch.dtype, scale: float
) -> None:
    (query, key, value), plan = case.tokens(dtype), case.plan(compensate=False)
    check_blocks(by, case, (query, key, value), plan.key_blocks(), scale)


@on_every_implementation
@pytest.mark.parametrize("keys", [128, 129, 700])
def test_blocks_that_are_longer_than_a_chunk(by: Implementation, keys: int) -> None:
    case = Case(1, 1, 60, keys, 32, 55, 2, seed=keys)
    query, key, value = case.tokens()
    key = key * torch.linspace(0.1, 3, keys).view(1, 1, keys, 1)  # the largest logit comes late
    check_blocks(by, case, (query, key, value), torch.zeros(1, 1, keys, dtype=torch.int64), 0.5)


def check_blocks(
    by: Implementation,
    case: Case,
    tokens: tuple[Tensor, Tensor, Tensor],
    labels: Tensor,
    scale: float,
) -> None:
    query, key, value = tokens
    order = labels.argsort(dim=-1, stable=True)
    sizes = torch.nn.functional.one_hot(labels, case.key_blocks).sum(dim=2)
    query_mean = query[:, :, : case.query_blocks]
    key_mean = find_moments(key, order, sizes, by="torch").mean.to(key.dtype)
    seen = see_blocks(query_mean, key_mean, key, value, order, sizes, scale=scale, by=by)
    assert seen.value.dtype == key.dtype
    for b, h in heads(case):
        for i, j in itertools.product(range(case.query_blocks), range(case.key_blocks)):
            members = labels[b, h] == j
            got = seen.bias[b, h, i, j].double(), seen.value[b, h, i, j].double()
            if not bool(members.any()):
                assert float(got[0]) == -math.inf and not bool(got[1].any())
                assert float(seen.length[b, h, i, j]) == 0
                continue
            parts = (
                query_mean[b, h, i],
                key_mean[b, h, j],
                key[b, h][members],
                value[b, h][members],
            )
            q, c, k, v = (part.double() for part in parts)
            bias, exact = definition(q, c, k, v, scale)
            slack = 3e-5 if key.dtype == torch.float32 else 1e-2
            torch.testing.assert_close(got[0], bias, atol=1e-4, rtol=1e-5)
            torch.testing.assert_close(got[1], exact, atol=slack, rtol=slack)
            assert math.isclose(
                float(seen.length[b, h, i, j]), float(exact.norm()), abs_tol=2 * slack
            )


def random_moments(case: Case, count: int, seed: int) -> Moments:
    shape = (case.batch, case.heads, count, case.size)
    sizes = (normal(*shape[:3], seed=seed).abs() * 4).long()
    sizes[..., 0] += 1
    return Moments(normal(*shape, seed=seed + 1), normal(*shape, seed=seed + 2).square(), sizes)


@given(case=cases())
def test_weights_errors_and_the_choice(case: Case) -> None:
    query, key, value = (
        random_moments(case, count, seed)
        for seed, count in enumerate((case.query_blocks, case.key_blocks, case.key_blocks))
    )
    scale, tolerance = 0.4, 0.02
    shape = (case.batch, case.heads, case.query_blocks, case.key_blocks)
    bias = normal(*shape, seed=7).masked_fill(key.sizes.unsqueeze(2) == 0, -torch.inf)
    length, weight = normal(*shape, seed=8).abs(), normal(case.heads, seed=9).abs()
    shares = term_weights(query.mean, key.mean, bias, scale=scale)
    error = expected_error(shares.weights, query, key, value, length, scale=scale)
    keep = keep_by_error(error, key.sizes, tolerance, weight)
    for b, h in heads(case):
        for i in range(case.query_blocks):
            logits = [
                float(query.mean[b, h, i].double() @ key.mean[b, h, j].double()) * scale
                + float(bias[b, h, i, j])
                for j in range(case.key_blocks)
            ]
            total = sum(math.exp(logit) for logit in logits)
            log_total = float(shares.log_total[b, h, i])
            assert math.isclose(log_total, math.log(total), abs_tol=1e-4)
            scores = []
            for j in range(case.key_blocks):
                share = math.exp(logits[j]) / total
                assert math.isclose(
                    float(shares.weights[b, h, i, j]), share, rel_tol=1e-4, abs_tol=1e-7
                )
                varies = scale**2 * float(
                    query.variance[b, h, i].double() @ key.variance[b, h, j].double()
                )
                spread = math.sqrt(float(value.variance[b, h, j].double().sum()))
                wanted = share * (
                    math.sqrt(varies) * spread + varies / 2 * float(length[b, h, i, j])
                )
                assert math.isclose(float(error[b, h, i, j]), wanted, rel_tol=1e-3, abs_tol=1e-7)
                size = int(key.sizes[b, h, j])
                scores.append(float(weight[h]) * wanted / size if size else -1)
            for j, score in enumerate(scores):
                if abs(score - tolerance) > 1e-5 and abs(score - max(scores)) > 1e-5:
                    assert bool(keep[b, h, i, j]) == (score > tolerance)
            assert int(keep[b, h, i].sum()) >= 1
            assert not bool((keep[b, h, i] & (key.sizes[b, h] == 0)).any())


def test_the_best_block_is_kept_at_any_tolerance() -> None:
    error = torch.tensor([[[[0.1, 0.4, 0.3, 9.0]]]])
    sizes = torch.tensor([[[1, 4, 1, 0]]])
    keep = keep_by_error(error, sizes, 1e9, torch.ones(1))
    assert keep.tolist() == [[[[False, False, True, False]]]]
    nothing = keep_by_error(torch.zeros(1, 1, 2, 4), sizes, 0.0, torch.ones(1))
    assert nothing.tolist() == [[[[True, False, False, False]] * 2]]


def test_heads_that_go_together() -> None:
    assert heads_per_group(1, 512, 2048, 128, 2) == 4
    assert heads_per_group(2, 512, 2048, 128, 2) == 2
    assert heads_per_group(1, 512, 2048, 128, 2, bound=1) == 1


def test_on_a_gpu_one_kernel_sees(kernel_device: torch.device) -> None:
    case = Case(1, 2, 30, 40, 16, 3, 5, seed=4)
    query, key, value = (side.to(kernel_device) for side in case.tokens(torch.bfloat16))
    plan = plan_on(kernel_device, case.plan(compensate=False))
    assert plan.key_order is not None
    means = query[:, :, :3], key[:, :, :5]
    tokens = key, value, plan.key_order, plan.key_sizes
    expected = see_blocks(*means, *tokens, scale=0.3, by="torch")
    got = see_blocks(*means, *tokens, scale=0.3, by="triton")
    torch.testing.assert_close(got.bias, expected.bias, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(got.value, expected.value, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(got.length, expected.length, atol=2e-2, rtol=2e-2)
