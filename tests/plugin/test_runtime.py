"""What an intercepted call does: layouts, masks, budgets, measuring."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from diffusers import FirstBlockCacheConfig

from svoo import Profile, SVOOConfig, VideoLayout
from svoo.errors import ProfileError
from svoo.methods.base import Call, Dense
from svoo.methods.repaired import RepairedConfig
from svoo.methods.svoo.budgets import Budgets, MeasuredBudgets, ProfileBudgets
from svoo.methods.svoo.method import SVOOMethod
from svoo.plugin.adapters import Adapter
from svoo.plugin.apply import Handle, apply
from svoo.plugin.runtime import LEAST_TOKENS, LEAST_TOKENS_ELSEWHERE, Stage, _read_layout
from svoo.profiles.profile import flow_sigmas

SETTINGS: dict[str, Any] = {"query_clusters": 4, "key_clusters": 8, "dense_layers": 0}


def stage(*, prefix_mask: bool = False) -> Stage:
    adapter = Adapter((("blocks", "attn1"),), lambda *_: (2, 3, 4), prefix_mask=prefix_mask)
    return Stage(0, torch.nn.Identity(), adapter, grid=(2, 3, 4))


def budgets_of(handle: Handle) -> Budgets:
    session = handle._runtime.session
    assert session is not None and isinstance(session.method, SVOOMethod)
    return session.method.budgets


def test_the_page_of_settings_says_which_videos_stay_dense() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    assert list(LEAST_TOKENS) == ["cpu"]
    least = f"fewer than {LEAST_TOKENS['cpu']:,} tokens on a CPU, or {LEAST_TOKENS_ELSEWHERE:,} on"
    assert least in " ".join(page.split())


def test_what_is_beyond_the_grid_is_text() -> None:
    for tokens, layout in ((24, VideoLayout(2, 3, 4)), (29, VideoLayout(2, 3, 4, 5))):
        found = _read_layout(stage(), torch.zeros(1, tokens, 2, 8), None)
        assert vars(found) == vars(layout)


def test_a_prefix_mask_counts_the_real_text() -> None:
    mask = torch.ones(2, 1, 1, 29, dtype=torch.bool)
    mask[1, ..., 26:] = False
    layout = _read_layout(stage(prefix_mask=True), torch.zeros(2, 29, 2, 8), mask)
    assert isinstance(layout, VideoLayout)
    assert layout.valid_text is not None
    assert layout.valid_text.tolist() == [5, 2]


@pytest.mark.parametrize(
    ("prefix", "mask"),
    [
        (False, torch.ones(1, 1, 1, 29, dtype=torch.bool)),
        (True, torch.zeros(1, 1, 29, 29)),
        (True, torch.ones(1, 1, 29, 29, dtype=torch.bool)),
    ],
)
def test_a_mask_that_is_not_understood_means_dense(prefix: bool, mask: torch.Tensor) -> None:
    found = _read_layout(stage(prefix_mask=prefix), torch.zeros(1, 29, 2, 8), mask)
    assert isinstance(found, Dense)
    assert "attention mask" in found.reason


def test_too_few_tokens_or_no_grid_mean_dense() -> None:
    short = _read_layout(stage(), torch.zeros(1, 23, 2, 8), None)
    assert short == Dense("23 tokens are fewer than the grid 2 x 3 x 4")
    unknown = Stage(0, torch.nn.Identity(), stage().adapter)
    assert isinstance(_read_layout(unknown, torch.zeros(1, 24, 2, 8), None), Dense)


def profile(steps: int, values: torch.Tensor) -> Profile:
    """One input, three layers, four heads; `values` `[steps]` for every layer and head."""
    density = values.view(1, steps, 1, 1, 1).expand(1, steps, 3, 4, 1)
    masses = torch.tensor([0.95], dtype=torch.float64)
    return Profile(density, flow_sigmas(steps, 3.0), torch.zeros(steps).long(), masses)


def test_a_profiles_budget_follows_the_noise_level_not_the_index() -> None:
    """50 steps in the profile, 30 in the run: each step gets the budget of its sigma."""
    values = torch.rand(50, generator=torch.Generator().manual_seed(0))
    pipe = tiny.build("wan2.1-t2v")
    config = SVOOConfig(dense_steps=0, mass=0.5, budget_range=(0, 1), **SETTINGS)
    with apply(pipe, config, profile=profile(50, values)) as handle:
        tiny.generate(pipe, steps=30, output_type="latent")
        budgets = budgets_of(handle)
        assert isinstance(budgets, ProfileBudgets)
        levels = flow_sigmas(50, 3.0).flip(0)
        for step, sigma in enumerate(pipe.scheduler.sigmas[:30].tolist()):
            found = budgets.at(Call(step, 2), 4)
            assert found is not None
            by_hand = float(np.interp(sigma, levels, values.flip(0)))
            assert found.tolist() == pytest.approx([by_hand] * 4, abs=1e-4)


def test_a_profile_of_two_experts_is_not_for_one() -> None:
    two = replace(profile(4, torch.full((4,), 0.3)), stage=torch.tensor([0, 0, 1, 1]))
    pipe = tiny.build("wan2.1-t2v")
    with pytest.raises(ProfileError, match=r"has 2 stages .*; the pipeline has 1"):
        apply(pipe, profile=two)
    assert "_svoo_handle" not in pipe.transformer.__dict__


def test_a_profile_of_another_model_is_used_with_a_warning() -> None:
    pipe = tiny.build("wan2.1-t2v")
    given = profile(4, torch.full((4,), 0.3))
    other = replace(given, provenance={"model": "wan2.1-t2v-14b"})
    apply(pipe, "paper", other).remove()  # nobody knows what this pipeline is
    pipe.register_to_config(_name_or_path="Wan-AI/Wan2.1-T2V-1.3B-Diffusers")
    text = r"measured on wan2\.1-t2v-14b, this pipeline is wan2\.1-t2v-1\.3b"
    with pytest.warns(UserWarning, match=text):
        apply(pipe, "paper", other)
    apply(pipe, "paper", replace(given, provenance={"model": "wan2.1-t2v-1.3b"}))
    apply(pipe, "paper", given)


def test_a_profile_that_is_not_used_is_told_of() -> None:
    pipe = tiny.build("wan2.1-t2v")
    given = profile(4, torch.full((4,), 0.3))
    with pytest.warns(UserWarning, match="profile is not used, because the tolerance decides"):
        handle = apply(pipe, profile=given)
    assert "budgets: none: the tolerance 0.0128 decides" in handle.summary()
    with pytest.warns(UserWarning, match="profile is not used, because svg2 chooses what is kept"):
        apply(pipe, "svg2", given)


def test_a_method_without_budgets_asks_for_no_stored_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    monkeypatch.setattr("svoo.plugin.apply.find_profile", lambda *facts: asked.append(facts))
    pipe = tiny.build("wan2.1-t2v")
    for method in ("svg2", "radial", "dense", "svoo", RepairedConfig(of=SVOOConfig())):
        apply(pipe, method)
    assert asked == []
    apply(pipe, "paper")
    apply(pipe, RepairedConfig(of=SVOOConfig.paper()))
    assert len(asked) == 2


def test_a_profile_of_another_size_is_used_with_a_warning() -> None:
    pipe = tiny.build("wan2.1-t2v")
    given = profile(4, torch.full((4,), 0.3))
    other = Profile(given.density, given.sigma, given.stage, given.masses, {"tokens": "7488"})
    with apply(pipe, SVOOConfig(dense_steps=0, mass=0.5, **SETTINGS), profile=other) as handle:
        with pytest.warns(UserWarning, match="with 7488 video tokens, this run has 48"):
            tiny.generate(pipe, steps=2)
        tiny.generate(pipe, steps=2)  # warned once
        assert "note: the profile was measured with 7488" in handle.summary()


def test_budgets_are_measured_in_the_last_warm_up_step() -> None:
    pipe = tiny.build("wan2.1-t2v")
    config = SVOOConfig(dense_steps=2, mass=0.5, **SETTINGS)
    with apply(pipe, config) as handle:
        tiny.generate(pipe, steps=4)
        budgets = budgets_of(handle)
        assert isinstance(budgets, MeasuredBudgets)
        assert set(budgets._measured_at.values()) == {1}
        assert all(bool((found > 0).all()) for found in budgets._found.values())
        data = handle.stats()
    assert data.budgets == "measured in the warm-up"
    assert data.seconds["measuring"] > 0
    assert [row.dense_calls for row in data.layers] == [4, 4, 4]  # two steps, two branches


def test_the_second_expert_is_measured_in_its_own_first_step() -> None:
    pipe = tiny.build("wan2.2-t2v")
    with apply(pipe, SVOOConfig(dense_steps=1, mass=0.5, **SETTINGS)) as handle:
        tiny.generate(pipe, steps=8)
        data = handle.stats()
        budgets = budgets_of(handle)
    assert isinstance(budgets, MeasuredBudgets)
    assert set(budgets._found) == {(stage, layer, 0) for stage in (0, 1) for layer in range(3)}
    second = [row for row in data.layers if row.stage == 1]
    reason = "the first step of this expert is dense to measure its budgets"
    assert all(row.dense_reasons == {reason: 2} for row in second)
    assert all(row.sparse_calls > 0 for row in second)


def test_without_a_dense_step_mass_alone_decides_and_says_so() -> None:
    pipe = tiny.build("wan2.1-t2v")
    with apply(pipe, SVOOConfig(dense_steps=0, mass=0.5, **SETTINGS)) as handle:
        tiny.generate(pipe, steps=2)
        assert "note: no dense step to measure budgets in: mass alone decides" in handle.summary()


def test_recall_is_measured_when_asked() -> None:
    pipe = tiny.build("wan2.1-t2v")
    config = SVOOConfig(dense_steps=1, mass=0.5, measure_recall=True, **SETTINGS)
    with apply(pipe, config) as handle:
        tiny.generate(pipe, steps=3)
        assert all(0.3 < (row.recall or 0) < 1 for row in handle.stats().layers)


def test_layers_that_a_cache_skips_in_the_warm_up_are_measured_later() -> None:
    pipe = tiny.build("wan2.1-t2v")
    pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.6))
    with apply(pipe, SVOOConfig(dense_steps=2, mass=0.5, **SETTINGS)) as handle:
        tiny.generate(pipe, steps=10)
        budgets, rows = budgets_of(handle), handle.stats().layers
    reason = "skipped in the warm-up, dense to measure its budgets"
    assert any(reason in row.dense_reasons for row in rows)
    assert isinstance(budgets, MeasuredBudgets)
    assert set(budgets._found) == {(0, layer, 0) for layer in range(3)}
    assert all(bool((found > 0).all()) for found in budgets._found.values())
