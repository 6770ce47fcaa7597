import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, chance, normal
from torch import Tensor

from svoo import BlockPlan, FarTerms, run_plan
from svoo.core.far_field import PLAN_BYTES, heads_per_plan, plan_far_field
from svoo.core.far_tiers import group_labels


def labels(case: Case, side: str) -> Tensor:
    """Random labels, some clusters empty."""
    tokens = case.queries if side == "query" else case.keys
    blocks = case.query_blocks if side == "query" else case.key_blocks
    generator = chance(case.seed + len(side))
    return torch.randint(blocks, (case.batch, case.heads, tokens), generator=generator)


def by_definition(
    case: Case, tolerance: float, weight: Tensor, groups: int, scale: float
) -> tuple[Tensor, list[list[set[int]]], Tensor]:
    """The far field a query at a time in float64: output, kept blocks, shares w."""
    query, key, value = case.tokens(torch.float64)
    query_labels, key_labels = labels(case, "query"), labels(case, "key")
    output, kept_all = torch.zeros_like(query), []
    shares = torch.zeros(case.batch, case.heads, case.query_blocks, case.key_blocks).double()
    for b in range(case.batch):
        for h in range(case.heads):
            q, k, v = query[b, h], key[b, h], value[b, h]
            members = [(key_labels[b, h] == j).nonzero()[:, 0] for j in range(case.key_blocks)]
            full = [j for j, found in enumerate(members) if len(found)]
            means = {j: k[members[j]].mean(dim=0) for j in full}
            values = {j: v[members[j]].mean(dim=0) for j in full}
            centroids = torch.zeros(case.key_blocks, case.size).double()
            for j in full:
                centroids[j] = means[j]
            sizes = torch.tensor([len(found) for found in members])
            of = group_labels(centroids[None, None], sizes[None, None], max(1, groups))[0, 0]
            rows = []
            for i in range(case.query_blocks):
                own = (query_labels[b, h] == i).nonzero()[:, 0]
                kept: set[int] = set()
                rows.append(kept)
                if not len(own):
                    continue
                centre = q[own].mean(dim=0)
                spread_q = (q[own] - centre).square().mean(dim=0)
                logits = {j: k[members[j]] @ centre * scale for j in full}
                log_sum = {
                    j: float((logits[j] - centre @ means[j] * scale).exp().sum().log())
                    for j in full
                }
                seen = {j: logits[j].softmax(dim=0) @ v[members[j]] for j in full}
                mass = {j: float(logits[j].exp().sum()) for j in full}
                share = {j: mass[j] / sum(mass.values()) for j in full}
                error = {}
                for j in full:
                    shares[b, h, i, j] = share[j]
                    spread_k = (k[members[j]] - means[j]).square().mean(dim=0)
                    deviation = float(
                        (v[members[j]] - values[j]).square().mean(dim=0).sum().sqrt()
                    )
                    s = float((spread_q * spread_k).sum()) * scale**2
                    error[j] = share[j] * (
                        math.sqrt(s) * deviation + s / 2 * float(seen[j].norm())
                    )
                worth = {j: float(weight[h]) * error[j] / len(members[j]) for j in full}
                kept |= {j for j in full if worth[j] > tolerance} | {
                    max(full, key=lambda j: worth[j])
                }
                joined: dict[int, list[int]] = {}
                for j in full if groups else ():
                    here = [m for m in full if of[m] == of[j]]
                    count = sum(len(members[m]) for m in here)
                    middle = sum(len(members[m]) * means[m] for m in here) / count
                    typical = sum(len(members[m]) * values[m] for m in here) / count
                    s = float((spread_q * (means[j] - middle).square()).sum()) * scale**2
                    lost = math.sqrt(s) * float((values[j] - typical).norm()) + s / 2 * float(
                        values[j].norm()
                    )
                    if j not in kept and float(weight[h]) * share[j] * lost < tolerance:
                        joined.setdefault(int(of[j]), []).append(j)
                together = {j for found in joined.values() for j in found}
                for n in own.tolist():
                    keys, results = [], []
                    for j in full:
                        if j in kept:
                            keys += [float(q[n] @ k[t] * scale) for t in members[j]]
                            results += list(v[members[j]])
                        elif j not in together:
                            keys.append(float(q[n] @ means[j] * scale) + log_sum[j])
                            results.append(seen[j])
                    for found in joined.values():
                        part = sum(share[j] for j in found)
                        centre_key = sum(share[j] * means[j] for j in found) / part
                        total = math.log(sum(mass[j] for j in found))
                        keys.append(float((q[n] - centre) @ centre_key * scale) + total)
                        results.append(sum(share[j] * values[j] for j in found) / part)
                    weights = torch.tensor(keys, dtype=torch.float64).softmax(dim=0)
                    output[b, h, n] = weights @ torch.stack(results)
            kept_all.append(rows)
    return output, kept_all, shares


@settings(max_examples=40)
@given(
    case=cases(max_tokens=24, sizes=(1, 3, 8)),
    tolerance=st.sampled_from((0.0, 0.003, 0.05, 10.0)),
    groups=st.sampled_from((0, 1, 3)),
)
def test_it_is_the_definition(case: Case, tolerance: float, groups: int) -> None:
    query, key, value = case.tokens(torch.float64)
    weight = torch.linspace(0.5, 2.0, case.heads).double()
    expected, kept, _ = by_definition(case, tolerance, weight, groups, 0.3)
    plan = plan_far_field(
        query,
        key,
        value,
        labels(case, "query"),
        labels(case, "key"),
        (case.query_blocks, case.key_blocks),
        tolerance=tolerance,
        weight=weight,
        groups=groups,
        scale=0.3,
    )
    flat = plan.keep.flatten(0, 1)
    for head, rows in enumerate(kept):
        for block, wanted in enumerate(rows):
            if wanted:
                assert set(flat[head, block].nonzero()[:, 0].tolist()) == wanted
    output = run_plan(query, key, value, plan, backend="reference", scale=0.3)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)  # the bias is float32


def test_the_query_centroid_sees_what_dense_attention_gives() -> None:
    """All blocks as terms: exact for a query that is its block's centroid."""
    query, key, value = (normal(1, 2, 40, 8, seed=seed) for seed in range(3))
    alone = torch.arange(40).expand(1, 2, 40)
    some = alone % 5
    plan = plan_far_field(query, key, value, alone, some, (40, 5), tolerance=9.0, groups=0)
    assert isinstance(plan.terms, FarTerms) and float(plan.density().max()) <= 0.21
    dense = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    output = run_plan(query, key, value, plan, backend="reference")
    torch.testing.assert_close(output, dense, atol=1e-5, rtol=1e-5)


def test_a_smaller_tolerance_keeps_more_and_errs_less() -> None:
    query, key, value = (normal(1, 2, 200, 8, seed=seed) for seed in range(3))
    sides = torch.arange(200).expand(1, 2, 200) % 10
    dense = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    densities, errors = [], []
    for tolerance in (1.0, 0.0008, 0.0004, 0.0):
        plan = plan_far_field(query, key, value, sides, sides, (10, 10), tolerance=tolerance)
        densities.append(float(plan.density().mean()))
        output = run_plan(query, key, value, plan, backend="reference")
        errors.append(float((output - dense).norm() / dense.norm()))
    assert densities == sorted(densities) and errors == sorted(errors, reverse=True)
    assert densities[-1] == 1 and errors[-1] < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    query, key, value = (normal(2, 2, 60, 16, seed=seed) for seed in range(3))
    sides = torch.arange(60).expand(2, 2, 60) % 6
    exact = plan_far_field(query, key, value, sides, sides, (6, 6), tolerance=0.002)
    narrow = query.to(dtype), key.to(dtype), value.to(dtype)
    plan = plan_far_field(*narrow, sides, sides, (6, 6), tolerance=0.002)
    assert isinstance(plan.terms, FarTerms) and isinstance(exact.terms, FarTerms)
    assert plan.terms.value.dtype == dtype and plan.terms.bias.dtype == torch.float32
    output = run_plan(*narrow, plan, backend="reference").float()
    expected = run_plan(query, key, value, exact, backend="reference")
    assert float((output - expected).norm() / expected.norm()) < 0.02


def test_heads_go_in_groups_below_the_bound() -> None:
    per_plan = heads_per_plan(512, 2048, 128, torch.bfloat16)
    assert per_plan == 4 and per_plan * 512 * 2048 * 128 * 2 <= PLAN_BYTES
    assert heads_per_plan(10**6, 10**6, 128, torch.float32) == 1


def test_one_token() -> None:
    query, key, value = (normal(1, 1, 1, 4, seed=seed) for seed in range(3))
    one = torch.zeros(1, 1, 1, dtype=torch.int64)
    plan = plan_far_field(query, key, value, one, one, (1, 1), tolerance=0.1)
    assert isinstance(plan, BlockPlan)
    torch.testing.assert_close(run_plan(query, key, value, plan, backend="reference"), value)
