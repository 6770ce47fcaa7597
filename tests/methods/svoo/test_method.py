from dataclasses import replace

import pytest
import torch
from making import normal

from svoo import LabelState, Profile, SVOOConfig, VideoLayout
from svoo.core.plan import BlockPlan
from svoo.methods.base import Call, Dense, Run
from svoo.methods.svoo.budgets import ProfileBudgets
from svoo.methods.svoo.method import SVOOMethod, plan_call
from svoo.profiles.profile import flow_sigmas

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
    base = {"dense_steps": 0, "query_clusters": 4, "key_clusters": 8}
    config = replace(SVOOConfig.mean_terms(), **(base | settings))  # type: ignore[arg-type]
    profile = None
    if budgets is not None:  # [steps, layers, heads], of one input
        masses = torch.tensor([0.95], dtype=torch.float64)
        stages = torch.zeros(len(budgets), dtype=torch.int64)
        profile = Profile(budgets[None, ..., None], flow_sigmas(len(budgets), 3.0), stages, masses)
    return SVOOMethod(config, Run(steps=10, sigmas=flow_sigmas(10, 3.0), profile=profile))


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


def test_state_is_int16_and_ends_with_the_video() -> None:
    svoo = method(recluster_every=9)
    first = plan_at(svoo, 0)
    # Two heads of two bytes: orders of 60 tokens on both sides, sizes of 4 and 8 clusters.
    assert svoo.state_bytes == 2 * 2 * (60 + 60 + 4 + 8)
    next_video = svoo.config.start(svoo.run)
    assert isinstance(next_video, SVOOMethod) and next_video.state_bytes == 0
    assert not same_labels(first, plan_at(next_video, 1, OTHER))


def test_samples_of_one_video_share_labels() -> None:
    """Both branches in one batch: the labels of the first serve the other, centroids are fresh."""
    both = torch.cat((QUERY, OTHER)), KEY.expand(2, -1, -1, -1), VALUE.expand(2, -1, -1, -1)
    call = Call(0, 1, LAYOUT, branch=("uncond", "cond"))
    plan = method(mass=0.4).plan(*both, call)
    alone = plan_at(method(mass=0.4), 0)
    assert isinstance(plan, BlockPlan)
    for sample in (0, 1):
        assert torch.equal(plan.query_blocks()[sample], alone.query_blocks()[0])
        assert torch.equal(plan.key_blocks()[sample], alone.key_blocks()[0])
    assert torch.equal(plan.keep[0], alone.keep[0]) and not torch.equal(plan.keep[1], plan.keep[0])
    apart = method(mass=0.4, share_branches=False).plan(*both, call)
    assert isinstance(apart, BlockPlan)
    assert not torch.equal(apart.query_blocks()[1], alone.query_blocks()[0])


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


def test_budgets_are_looked_up_clipped_and_end_with_the_run() -> None:
    budgets = torch.rand(10, 3, 2, generator=torch.Generator().manual_seed(0))
    svoo = method(budgets, dense_layers=0, budget_range=(0.3, 0.6))
    for step, row in ((2, 2), (12, 9)):  # a scheduler may run on after its last step
        _, found = svoo.targets(Call(step, 1), 2)
        torch.testing.assert_close(found, budgets[row, 1].clamp(0.3, 0.6))


def test_a_ramp_falls_from_dense_to_the_settings() -> None:
    svoo = method(torch.full((10, 1, 2), 0.2), mass=0.6, dense_steps=2, ramp=0.3, dense_layers=0)
    parts = [0.75, 0.5, 0.25, 0, 0, 0, 0, 0]
    for step, part in enumerate(parts, start=2):
        mass, found = svoo.targets(Call(step, 0), 2)
        assert mass == pytest.approx(0.6 + 0.4 * part) and found is not None
        assert found.tolist() == pytest.approx([0.2 + 0.8 * part] * 2)
    assert method(mass=0.6).targets(Call(0, 5), 2) == (0.6, None)


def test_without_noise_levels_every_step_takes_the_profiles_mean() -> None:
    budgets = torch.rand(10, 2, 2, generator=torch.Generator().manual_seed(1))
    profile = method(budgets).run.profile
    assert profile is not None
    notes: list[str] = []
    found = ProfileBudgets(Run(steps=4, profile=profile, note=notes.append), profile)
    first, last = (found.at(Call(step, 1), 2) for step in (0, 3))
    torch.testing.assert_close(first, budgets.mean(dim=0)[1])
    torch.testing.assert_close(first, last)
    assert "no noise levels" in notes[0]


def test_k_means_instead_of_co_clustering() -> None:
    assert not same_labels(plan_at(method(), 0), plan_at(method(clustering="kmeans"), 0))


def test_many_clusters_still_fit_the_state() -> None:
    tokens = normal(1, 1, 33_000, 1)
    config = SVOOConfig(mass=0.7, query_clusters=2, key_clusters=32_999, iterations=1)
    state = LabelState()
    plan_call(tokens, tokens, config, Call(0, 0), state=state)
    assert state.sides is not None
    assert [side.order.dtype for side in state.sides] == [torch.int32, torch.int32]
