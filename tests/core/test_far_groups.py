import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, normal

from svoo.core.clustering import Implementation
from svoo.core.far_field import Moments, term_weights
from svoo.core.far_groups import group_keys, group_terms, grouping_error


def random_moments(case: Case, count: int, seed: int) -> Moments:
    shape = (case.batch, case.heads, count, case.size)
    sizes = (normal(*shape[:3], seed=3).abs() * 4).long()
    sizes[..., 0] += 1
    return Moments(normal(*shape, seed=seed), normal(*shape, seed=seed + 1).square(), sizes)


@pytest.mark.parametrize("by", ["torch", pytest.param("cpp", marks=pytest.mark.compiler)])
@settings(max_examples=40)
@given(case=cases(), count=st.integers(1, 9))
def test_the_third_tier(by: Implementation, case: Case, count: int) -> None:
    query = random_moments(case, case.query_blocks, 10)
    key = random_moments(case, case.key_blocks, 20)
    value = random_moments(case, case.key_blocks, 30)
    groups = group_keys(key, value, count, by=by)
    scale = 0.4
    shape = (case.batch, case.heads, case.query_blocks, case.key_blocks)
    bias = normal(*shape, seed=7).masked_fill(key.sizes.unsqueeze(2) == 0, -torch.inf)
    shares = term_weights(query.mean, key.mean, bias, scale=scale)
    error = grouping_error(shares.weights, query, key, value, groups, scale=scale)
    far = (normal(*shape, seed=8) > 0) & (key.sizes > 0).unsqueeze(2)
    terms = group_terms(far, shares, query.mean, key.mean, value, groups, scale=scale)
    assert terms.bias.dtype == torch.float32
    for b, h in itertools.product(range(case.batch), range(case.heads)):
        check_groups(key, groups.labels[b, h], groups.key[b, h], b, h)
        for i in range(case.query_blocks):
            q, varies = query.mean[b, h, i].double(), query.variance[b, h, i].double()
            for j in range(case.key_blocks):
                g = int(groups.labels[b, h, j])
                c, v = key.mean[b, h, j].double(), value.mean[b, h, j].double()
                s2 = scale**2 * float(varies @ (c - groups.key[b, h, g].double()).square())
                apart = float((v - groups.value[b, h, g].double()).norm())
                wanted = float(shares.weights[b, h, i, j]) * (
                    math.sqrt(s2) * apart + s2 / 2 * float(v.norm())
                )
                assert math.isclose(float(error[b, h, i, j]), wanted, rel_tol=2e-3, abs_tol=1e-6)
            for g in range(groups.key.shape[2]):
                members = (far[b, h, i] & (groups.labels[b, h] == g)).nonzero().flatten()
                got = float(terms.bias[b, h, i, g])
                if not len(members):
                    assert got == -math.inf
                    continue
                own = key.mean[b, h, members].double()
                logits = own @ q * scale + bias[b, h, i, members].double()
                part = logits.softmax(dim=0)
                term_key = terms.key[b, h, i, g].double()
                torch.testing.assert_close(term_key, part @ own, atol=2e-4, rtol=2e-4)
                values = value.mean[b, h, members].double()
                torch.testing.assert_close(
                    terms.value[b, h, i, g].double(), part @ values, atol=2e-4, rtol=2e-4
                )
                # The mean query gives the term what it gave the blocks.
                logit = float(term_key @ q) * scale + got
                assert math.isclose(logit, float(logits.logsumexp(dim=0)), abs_tol=1e-3)


def check_groups(
    key: Moments, labels: torch.Tensor, centres: torch.Tensor, b: int, h: int
) -> None:
    """Four Lloyd steps, written out; a tie may go either way in float32."""
    count = len(centres)
    keys, sizes = key.mean[b, h].double(), key.sizes[b, h].double()
    chosen = labels
    own = keys[[g * len(keys) // count for g in range(count)]].clone()
    for _ in range(4):
        distances = torch.cdist(keys, own)
        chosen = distances.argmin(dim=-1)
        two = distances.sort(dim=-1).values[:, :2]
        if two.shape[1] == 2 and bool((two[:, 1] - two[:, 0] < 1e-4).any()):
            return
        for g in range(count):
            weights = sizes * (chosen == g)
            if float(weights.sum()) > 0:
                own[g] = weights @ keys / weights.sum()
    assert torch.equal(chosen, labels)
    torch.testing.assert_close(centres.double(), own, atol=1e-4, rtol=1e-4)
