import torch
from making import normal

from svoo import LabelState, SVOOConfig, VideoLayout
from svoo.core.plan import BlockPlan
from svoo.core.random import mix_seeds, seeded
from svoo.core.selection import by_expected_error
from svoo.methods.base import Call
from svoo.methods.schedule import Dense, Schedule
from svoo.methods.svoo.method import SVOOMethod, make_plan

LAYOUT = VideoLayout(3, 4, 5)
QUERY, KEY, VALUE = (normal(1, 2, 60, 8, seed=seed) for seed in range(3))
OTHER = normal(1, 2, 60, 8, seed=9)


def plan_at(
    method: SVOOMethod, step: int, query: torch.Tensor = QUERY, **where: object
) -> BlockPlan:
    call = Call(**({"step": step, "layer": 1, "layout": LAYOUT} | where))  # type: ignore[arg-type]
    plan = method.plan(query, KEY, VALUE, call)
    assert isinstance(plan, BlockPlan)
    return plan


def same_labels(one: BlockPlan, two: BlockPlan) -> bool:
    return torch.equal(one.query_blocks(), two.query_blocks()) and torch.equal(
        one.key_blocks(), two.key_blocks()
    )


def method(budgets: torch.Tensor | None = None, **settings: object) -> SVOOMethod:
    config = SVOOConfig(**({"dense_steps": 0, "query_clusters": 4, "key_clusters": 8} | settings))  # type: ignore[arg-type]
    return SVOOMethod(config, Schedule(config, 10, budgets))


def test_labels_live_for_recluster_every_steps_by_age() -> None:
    svoo = method(recluster_every=3)
    first = plan_at(svoo, 2)
    assert same_labels(first, plan_at(svoo, 4, OTHER))  # two steps old, whatever the tokens are
    new = plan_at(svoo, 5, OTHER)  # three steps old
    assert not same_labels(first, new)
    assert same_labels(new, plan_at(svoo, 7))  # the age counts from 5
    assert not same_labels(new, plan_at(svoo, 0))  # an earlier step is another run


def test_centroids_and_keep_are_fresh_at_every_call() -> None:
    svoo = method(recluster_every=5, mass=0.4)
    first, second = plan_at(svoo, 0), plan_at(svoo, 1, -QUERY)
    assert same_labels(first, second)
    assert not torch.equal(first.keep, second.keep)


def test_branches_share_labels_unless_told_not_to() -> None:
    shared, apart = method(), method(share_branches=False)
    assert same_labels(plan_at(shared, 0), plan_at(shared, 0, OTHER, branch="uncond"))
    assert not same_labels(plan_at(apart, 0), plan_at(apart, 0, OTHER, branch="uncond"))
    assert apart.state_bytes == 2 * shared.state_bytes


def test_layers_and_stages_have_their_own_labels() -> None:
    svoo = method(recluster_every=9)
    plans = [plan_at(svoo, 0), plan_at(svoo, 0, layer=2), plan_at(svoo, 0, stage=1)]
    assert not same_labels(plans[0], plans[1])
    assert not same_labels(plans[0], plans[2])


def test_state_is_int16_and_dropped_on_reset() -> None:
    svoo = method(recluster_every=9)
    first = plan_at(svoo, 0)
    assert svoo.state_bytes == 2 * 2 * 60 * 2  # two sides, two heads, 60 tokens, two bytes
    svoo.reset()
    assert svoo.state_bytes == 0
    assert not same_labels(first, plan_at(svoo, 1, OTHER))


def test_labels_of_another_shape_are_never_used() -> None:
    svoo = method(recluster_every=9)
    plan_at(svoo, 0)
    smaller = VideoLayout(2, 4, 5)
    plan = svoo.plan(QUERY[:, :, :40], KEY[:, :, :40], VALUE[:, :, :40], Call(1, 1, smaller))
    assert isinstance(plan, BlockPlan)
    assert plan.query_tokens == 40


def test_warm_up_is_dense_and_leaves_no_state() -> None:
    svoo = method(dense_steps=2, dense_layers=1)
    assert isinstance(svoo.plan(QUERY, KEY, VALUE, Call(1, 1, LAYOUT)), Dense)
    assert isinstance(svoo.plan(QUERY, KEY, VALUE, Call(5, 0, LAYOUT)), Dense)
    assert svoo.state_bytes == 0


def test_budgets_reach_their_heads_from_the_head_offset() -> None:
    budgets = torch.zeros(10, 2, 6)
    budgets[:, 1, 4:] = torch.tensor([0.2, 0.9])
    svoo = method(budgets, mass=1.0, key_clusters=20)
    plan = plan_at(svoo, 0, head_offset=4)
    low, high = plan.density()[0].tolist()
    assert low <= 0.2
    assert 0.7 < high <= 0.9


def test_the_same_seed_gives_the_same_plan_and_another_another() -> None:
    one, two, three = method(), method(), method(seed=1)
    assert same_labels(plan_at(one, 0), plan_at(two, 0))
    assert not same_labels(plan_at(one, 0), plan_at(three, 0))


def test_blocks_can_be_ranked_by_another_score() -> None:
    config = SVOOConfig(dense_steps=0, query_clusters=4, key_clusters=8, mass=0.4)
    layout = VideoLayout(3, 4, 4, text=12)
    by_error = SVOOMethod(config, Schedule(config, 10, None), by_expected_error)
    plan = by_error.plan(QUERY, KEY, VALUE, Call(0, 1, layout))
    plain = SVOOMethod(config, Schedule(config, 10, None)).plan(
        QUERY, KEY, VALUE, Call(0, 1, layout)
    )
    assert isinstance(plan, BlockPlan) and isinstance(plain, BlockPlan)
    assert same_labels(plan, plain)
    assert not torch.equal(plan.keep, plain.keep)
    video = KEY[:, :, :48], VALUE[:, :, :48]
    exact = make_plan(
        QUERY,
        KEY,
        config,
        layout=layout,
        generator=seeded(mix_seeds(config.seed, 0, 1, 0)),
        score=by_expected_error(*video),
    )
    assert torch.equal(plan.keep, exact.keep)


def test_k_means_instead_of_co_clustering() -> None:
    assert not same_labels(plan_at(method(), 0), plan_at(method(clustering="kmeans"), 0))


def test_many_clusters_still_fit_the_state() -> None:
    tokens = normal(1, 1, 33_000, 1)
    config = SVOOConfig(query_clusters=2, key_clusters=32_999, iterations=1)
    state = LabelState()
    make_plan(tokens, tokens, config, state=state)
    assert state.labels is not None
    assert [side.dtype for side in state.labels] == [torch.int16, torch.int32]
