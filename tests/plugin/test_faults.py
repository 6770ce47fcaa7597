"""Faults seen in others' code, one test each."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from svoo import Profile, SVOOConfig
from svoo.errors import ProfileError
from svoo.methods.svoo.budgets import ProfileBudgets
from svoo.methods.svoo.method import SVOOMethod
from svoo.plugin.apply import Handle, apply
from svoo.profiles.profile import flow_sigmas

SETTINGS: dict[str, Any] = {"query_clusters": 4, "key_clusters": 8, "dense_layers": 0, "mass": 0.5}
SPARSE = SVOOConfig(dense_steps=1, recluster_every=100, **SETTINGS)


def profile(layers: int = 3, steps: int = 50, stages: int = 1) -> Profile:
    sigma = flow_sigmas(steps, 3.0)
    stage = torch.arange(steps) * stages // steps
    density = (
        torch.linspace(0.1, 0.9, steps).view(1, steps, 1, 1, 1).expand(1, steps, layers, 4, 1)
    )
    return Profile(density, sigma, stage, torch.tensor([0.95], dtype=torch.float64))


def profile_budgets(handle: Handle) -> torch.Tensor:
    """The budgets `[steps, layers, heads]` that a run took from its profile."""
    session = handle._runtime.session
    assert session is not None and isinstance(session.method, SVOOMethod)
    assert isinstance(session.method.budgets, ProfileBudgets)
    return session.method.budgets._budgets


def test_second_call_does_not_reuse_the_first_videos_clusters() -> None:
    pipe = tiny.build("wan2.1-t2v")
    alone = tiny.build("wan2.1-t2v")
    apply(pipe, SPARSE)
    apply(alone, SPARSE)
    tiny.generate(pipe, seed=1)
    assert torch.equal(tiny.generate(pipe, seed=2), tiny.generate(alone, seed=2))


def test_an_aborted_run_does_not_skip_the_next_runs_warm_up() -> None:
    pipe = tiny.build("wan2.1-t2v")
    handle = apply(pipe, SPARSE)

    def abort(_pipe: Any, step: int, _timestep: object, state: dict[str, Any]) -> dict[str, Any]:
        if step == 2:
            raise RuntimeError("enough")
        return state

    with pytest.raises(RuntimeError, match="enough"):
        tiny.generate(pipe, callback_on_step_end=abort)
    before = handle.stats().layers[0].dense_calls
    tiny.generate(pipe)
    assert handle.stats().layers[0].dense_calls == before + 2  # one step, two branches


def test_cond_and_uncond_do_not_overwrite_each_other() -> None:
    """Kept apart, each branch has its own labels; shared, they come from the first alone."""
    pipe = tiny.build("wan2.1-t2v")
    handle = apply(pipe, SVOOConfig(dense_steps=1, share_branches=False, **SETTINGS))
    tiny.generate(pipe)
    session = handle._runtime.session
    assert session is not None and isinstance(session.method, SVOOMethod)
    assert {branch for _, _, branch, _, _ in session.method._states} == {"cond", "uncond"}


def test_the_second_expert_finds_its_profile() -> None:
    pipe = tiny.build("wan2.2-t2v")
    sigma = flow_sigmas(50, 3.0)
    stage = (sigma < 0.875).long()
    density = torch.where(stage == 0, 0.2, 0.7).view(1, 50, 1, 1, 1).expand(1, 50, 3, 4, 1)
    given = Profile(density, sigma, stage, torch.tensor([0.95], dtype=torch.float64))
    handle = apply(pipe, SVOOConfig(dense_steps=0, **SETTINGS), profile=given)
    tiny.generate(pipe, steps=8)
    budgets = profile_budgets(handle)
    second = pipe.scheduler.timesteps < 875
    assert bool((budgets[second] == 0.7).all())
    assert bool((budgets[~second] == 0.2).all())


def test_a_profile_that_does_not_load_is_not_switched_off_silently(tmp_path: Path) -> None:
    path = tmp_path / "profile.safetensors"
    path.write_bytes(b"damaged")
    with pytest.raises(ProfileError, match="not a whole"):
        apply(tiny.build("wan2.1-t2v"), SPARSE, profile=Profile.load(path))
    with pytest.raises(ProfileError, match="30 layers"):
        apply(tiny.build("wan2.1-t2v"), SPARSE, profile=profile(layers=30))


def test_the_grid_is_never_guessed_from_the_token_count() -> None:
    """64 x 96 and 96 x 64 have equally many tokens; each gets its own grid."""
    pipe = tiny.build("wan2.1-t2v")
    handle = apply(pipe, SPARSE)
    for height, width, grid in ((64, 96, (3, 4, 6)), (96, 64, (3, 6, 4))):
        tiny.generate(pipe, steps=2, height=height, width=width)
        assert handle._runtime.stages[0].grid == grid


def test_step_numbers_of_a_50_step_profile_are_not_read_for_a_short_run() -> None:
    pipe = tiny.build("wan2.1-t2v")
    handle = apply(pipe, SVOOConfig(dense_steps=0, **SETTINGS), profile=profile())
    tiny.generate(pipe, steps=5)
    budgets = profile_budgets(handle)
    # By index all five would lie in 0.1 .. 0.17; by noise level they cover the profile.
    assert budgets[0, 0, 0] < 0.15
    assert budgets[-1, 0, 0] > 0.5


def test_import_prints_compiles_and_edits_nothing() -> None:
    program = (
        "import torch; before = (torch.get_num_threads(), torch.get_float32_matmul_precision(),"
        "torch.backends.cuda.matmul.allow_tf32); import svoo, svoo.plugin.apply;"
        "assert before == (torch.get_num_threads(), torch.get_float32_matmul_precision(),"
        "torch.backends.cuda.matmul.allow_tf32)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == ""


def test_padding_text_tokens_are_not_counted_as_attention() -> None:
    """The density of a run does not move when the padding grows."""
    pipe = tiny.build("hunyuanvideo-t2v")
    densities = []
    for length in (12, 48):
        with apply(pipe, SVOOConfig(dense_steps=1, **SETTINGS)) as handle:
            tiny.generate(pipe, max_sequence_length=length)
            densities.append(handle.stats().density)
    assert densities[0] == pytest.approx(densities[1], abs=0.01)
