from dataclasses import replace

import pytest
import torch
from making import normal
from synthetic import clustered_tokens

from svoo import BlockPlan, Call, Dense, FarTerms, Run, Session, SVOOConfig, VideoLayout
from svoo.core.random import seeded
from svoo.methods.base import Compensate
from svoo.methods.svoo.method import SVOOMethod

LAYOUT = VideoLayout(5, 6, 10)
CONFIG = SVOOConfig(
    tolerance=2e-3,
    compensate="far",
    clustering="kmeans",
    recluster_every=1,
    dense_steps=0,
    dense_layers=0,
    query_clusters=24,
    key_clusters=40,
)
QUERY, KEY, VALUE = clustered_tokens(1, 2, 300, 16, generator=seeded(1))


def started(config: SVOOConfig = CONFIG, **known: object) -> SVOOMethod:
    return SVOOMethod(config, Run(steps=20, layers=2, heads=2, **known))  # type: ignore[arg-type]


def plan_at(method: SVOOMethod, step: int, **where: object) -> BlockPlan:
    plan = method.plan(QUERY, KEY, VALUE, Call(step, 1, LAYOUT, **where))  # type: ignore[arg-type]
    assert isinstance(plan, BlockPlan)
    return plan


def test_it_is_close_to_dense_where_there_is_structure() -> None:
    dense = torch.nn.functional.scaled_dot_product_attention(QUERY, KEY, VALUE)
    session = Session(CONFIG, steps=20, layers=2, heads=2)
    output = session.attend(QUERY, KEY, VALUE, step=10, layer=1, layout=LAYOUT)
    assert float((output - dense).norm() / dense.norm()) < 0.1
    assert (session.stats().density or 1) < 0.6


def test_labels_go_on_from_the_step_before_and_serve_both_branches() -> None:
    method = started()
    first, second = plan_at(method, 0), plan_at(method, 0, branch="uncond")
    assert torch.equal(first.key_blocks(), second.key_blocks())
    later = plan_at(method, 1)
    moved = (first.key_blocks() != later.key_blocks()).float().mean()
    assert 0 < float(moved) < 0.5  # one more iteration, not a new start
    alone = plan_at(started(), 1)
    assert float((alone.key_blocks() != later.key_blocks()).float().mean()) > 0.5


def test_the_first_steps_keep_more() -> None:
    def density(config: SVOOConfig, step: int) -> float:
        return float(plan_at(started(config), step).density().mean())

    even = replace(CONFIG, careful_start=0.0)
    quarter = replace(even, tolerance=CONFIG.tolerance_at(0, 20))
    for step in (0, 1):  # of 20
        assert density(CONFIG, step) == density(quarter, step) > density(even, step)
    assert density(CONFIG, 2) == density(even, 2)


def test_a_head_that_counts_more_keeps_more() -> None:
    weights = torch.tensor([0.1, 10.0]).expand(1, 2, 2)
    low, high = plan_at(started(head_weights=lambda: weights), 10).density()[0].tolist()
    even = plan_at(started(), 10).density()[0].tolist()
    assert low < even[0] and high > even[1]
    other = plan_at(started(head_weights=lambda: weights.flip(-1)), 10, head_offset=0)
    assert other.density()[0, 0] > other.density()[0, 1]


def test_tokens_without_structure_stay_dense_and_say_why() -> None:
    query, key, value = (normal(1, 2, 300, 16, seed=seed) for seed in range(3))
    config = SVOOConfig(**(vars(CONFIG) | {"tolerance": 1e-9}))
    method = started(config)
    for step in (0, 1):
        found = method.plan(query, key, value, Call(step, 1, LAYOUT))
        assert isinstance(found, Dense) and "of the pairs would not pay" in found.reason


def test_terms_are_there_and_groups_can_be_left_out() -> None:
    terms = plan_at(started(), 10).terms
    assert isinstance(terms, FarTerms) and terms.groups is not None
    config = SVOOConfig(**(vars(CONFIG) | {"groups": 0}))
    apart = plan_at(started(config), 10).terms
    assert isinstance(apart, FarTerms) and apart.groups is None
    assert int(apart.middle.sum()) > int(terms.middle.sum())


def test_co_clusters_instead_of_k_means() -> None:
    config = SVOOConfig(**(vars(CONFIG) | {"clustering": "co"}))
    assert not torch.equal(
        plan_at(started(config), 0).key_blocks(), plan_at(started(), 0).key_blocks()
    )


def test_mass_and_budgets_can_choose_and_far_terms_stand_for_the_rest() -> None:
    dense = torch.nn.functional.scaled_dot_product_attention(QUERY, KEY, VALUE)
    errors = {}
    choices: tuple[Compensate, ...] = (False, "mean", "far")
    for compensate in choices:
        config = SVOOConfig(
            mass=0.5,
            query_clusters=24,
            key_clusters=40,
            compensate=compensate,
        )
        session = Session(config.always_sparse(), steps=20, layers=2, heads=2)
        output = session.attend(QUERY, KEY, VALUE, step=0, layer=1, layout=LAYOUT)
        errors[compensate] = float((output - dense).norm() / dense.norm())
    assert errors["far"] < errors["mean"] < errors[False]


@pytest.mark.parametrize("sharpness", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("tokens", [300, 3000])
def test_tokens_without_structure_end_right(tokens: int, sharpness: float) -> None:
    """Isotropic noise, as random weights make it: dense with its reason, or close to dense."""
    query, key, value = (normal(1, 2, tokens, 16, seed=seed) for seed in range(3))
    query = query * sharpness
    session = Session(SVOOConfig(), steps=20, layers=1, heads=2)
    dense = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    for step in (0, 9):
        output = session.attend(query, key, value, step=step, layer=0)
        assert float((output - dense).norm() / dense.norm()) < 0.3
    reasons = dict(session.stats().layers[0].dense_reasons)
    if sharpness >= 1:
        assert sum(reasons.values()) == 2
    for reason in reasons:
        assert "of the pairs would not pay" in reason or "outputs would be" in reason


def test_a_layer_that_is_far_off_goes_on_with_less_tolerance() -> None:
    config = replace(CONFIG, tolerance=0.05, careful_start=0.0)
    free = Session(config, steps=20, layers=2, heads=2)
    free.attend(QUERY, KEY, VALUE, step=0, layer=1, layout=LAYOUT)
    loose = free.stats()
    assert loose.error is not None
    session = Session(replace(config, worst_error=0.7 * loose.error), steps=20, layers=2, heads=2)
    for step in range(6):
        session.attend(QUERY, KEY, VALUE, step=step, layer=1, layout=LAYOUT)
    stats = session.stats()
    assert stats.error is not None and stats.error < loose.error
    assert (stats.density or 0) > (loose.density or 1)
    assert 1 <= stats.dense_calls <= 3
    first = min(stats.layers[0].dense_reasons)
    assert "of the tolerance" in first


def test_a_layer_too_dense_at_the_careful_start_is_looked_at_again() -> None:
    starts = Session(CONFIG, steps=20, layers=2, heads=2)
    starts.attend(QUERY, KEY, VALUE, step=0, layer=1, layout=LAYOUT)
    later = Session(CONFIG, steps=20, layers=2, heads=2)
    later.attend(QUERY, KEY, VALUE, step=9, layer=1, layout=LAYOUT)
    densities = starts.stats().density or 0.0, later.stats().density or 1.0
    assert densities[0] > densities[1]
    session = Session(replace(CONFIG, densest=sum(densities) / 2), steps=20, layers=2, heads=2)
    for step in (0, 1, 2, 9):
        session.attend(QUERY, KEY, VALUE, step=step, layer=1, layout=LAYOUT)
    assert (session.stats().dense_calls, session.stats().sparse_calls) == (2, 2)


def test_a_layer_given_up_at_the_careful_start_is_tried_again() -> None:
    config = replace(CONFIG, tolerance=1e6, worst_error=1e-3)
    session = Session(config, steps=20, layers=2, heads=2)
    alike = [1 + 1e-4 * side for side in (QUERY, KEY, VALUE)]
    for step in range(6):
        shown = (QUERY, KEY, VALUE) if step < 2 else alike  # where a term errs by little
        for branch in ("a", "b", "c", "d"):
            session.attend(*shown, step=step, layer=1, branch=branch, layout=LAYOUT)
    stats = session.stats()
    assert (stats.dense_calls, stats.sparse_calls) == (8, 16)
    # And one that is still far off after it is given up again.
    session = Session(config, steps=20, layers=2, heads=2)
    for step in range(6):
        for branch in ("a", "b", "c", "d"):
            session.attend(QUERY, KEY, VALUE, step=step, layer=1, branch=branch, layout=LAYOUT)
    assert (session.stats().dense_calls, session.stats().sparse_calls) == (24, 0)


def test_a_layer_that_stays_far_off_stays_dense() -> None:
    config = replace(CONFIG, tolerance=1e6, worst_error=1e-3)
    session = Session(config, steps=20, layers=2, heads=2)
    dense = torch.nn.functional.scaled_dot_product_attention(QUERY, KEY, VALUE)
    for step in range(12):
        output = session.attend(QUERY, KEY, VALUE, step=step, layer=1, layout=LAYOUT)
        torch.testing.assert_close(output, dense)
    stats = session.stats()
    assert (stats.sparse_calls, stats.dense_calls, stats.error) == (0, 12, None)
    reasons = stats.layers[0].dense_reasons
    assert all("worst_error is 0%" in reason for reason in reasons)
    # Tried with the tolerance, half of it and so on to a 64th, and dense from then on.
    assert sorted(reasons.values()) == [*[1] * 6, 6]
    trusting = Session(replace(config, worst_error=1e6), steps=20, layers=2, heads=2)
    trusting.attend(QUERY, KEY, VALUE, step=0, layer=1, layout=LAYOUT)
    assert trusting.stats().sparse_calls == 1
