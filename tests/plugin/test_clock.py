from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from diffusers import FlowMatchHeunDiscreteScheduler, WanPipeline

from svoo import SVOOConfig
from svoo.methods.svoo.method import SVOOMethod
from svoo.plugin.apply import Handle, apply
from svoo.plugin.clock import Clock
from svoo.plugin.runtime import Runtime

CONFIG = SVOOConfig(mass=0.5, query_clusters=4, key_clusters=8, dense_steps=1, dense_layers=0)
Tick = tuple[int, int, int | None, str, int]  # call, step, steps, branch, stage


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[Tick]:
    """What the clock says at the first layer of every forward."""
    seen: list[Tick] = []
    attend = Runtime.attend

    def noting(runtime: Runtime, layer: Any, *rest: Any) -> Any:
        if layer.index == 0:
            clock, stage = runtime.clock, layer.stage
            seen.append(
                (clock.call, clock.step, clock.steps, clock.branch(stage.context), stage.index)
            )
        return attend(runtime, layer, *rest)

    monkeypatch.setattr(Runtime, "attend", noting)
    return seen


def steps_of(ticks: list[Tick], call: int = 1) -> list[int]:
    return [step for number, step, _, _, _ in ticks if number == call]


def test_two_forwards_a_step(ticks: list[Tick]) -> None:
    pipe = tiny.build("wan2.1-t2v")
    apply(pipe, CONFIG)
    tiny.generate(pipe, steps=3)
    assert ticks == [(1, step, 3, branch, 0) for step in range(3) for branch in ("cond", "uncond")]


def test_guidance_off(ticks: list[Tick]) -> None:
    pipe = tiny.build("wan2.1-t2v")
    apply(pipe, CONFIG)
    tiny.generate(pipe, steps=4, guidance_scale=1.0)
    assert ticks == [(1, step, 4, "cond", 0) for step in range(4)]


@pytest.mark.filterwarnings("ignore:In CPU autocast")
@pytest.mark.parametrize("prompts", [1, 2, 3])
@pytest.mark.parametrize("name", ["ltx-video", "cogvideox", "mochi"])
def test_without_guidance_one_forward_has_one_branch(
    name: str, prompts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These say "cond_uncond" whether there is guidance or not."""
    seen: list[tuple[str | tuple[str, ...], list[int]]] = []
    plan = SVOOMethod.plan

    def noting(method: SVOOMethod, query: torch.Tensor, *rest: Any) -> Any:
        call = rest[-1]
        seen.append((call.branch, [call.sample + video for video in call.videos(len(query))]))
        return plan(method, query, *rest)

    monkeypatch.setattr(SVOOMethod, "plan", noting)
    pipe = tiny.build(name)
    apply(pipe, CONFIG)
    call: dict[str, Any] = {"prompt": [tiny.PROMPT] * prompts, "steps": 2}
    tiny.generate(pipe, **call, guidance_scale=1.0)
    assert {branch for branch, _ in seen} == {"cond"}
    one_by_one = name == "mochi"
    videos = {tuple(numbers) for _, numbers in seen}
    assert videos == ({(n,) for n in range(prompts)} if one_by_one else {tuple(range(prompts))})
    seen.clear()
    tiny.generate(pipe, **call)
    assert {branch for branch, _ in seen} != {"cond"}


@pytest.mark.parametrize("name", ["wan2.1-i2v", "hunyuanvideo-t2v", "hunyuanvideo-i2v"])
def test_pipelines_that_do_not_tell_the_step(name: str, ticks: list[Tick]) -> None:
    pipe = tiny.build(name)
    apply(pipe, CONFIG)
    tiny.generate(pipe, steps=5)
    assert sorted(set(steps_of(ticks))) == list(range(5))
    assert {steps for _, _, steps, _, _ in ticks} == {5}


def test_experts_share_the_clock(ticks: list[Tick]) -> None:
    pipe = tiny.build("wan2.2-i2v")
    apply(pipe, CONFIG)
    tiny.generate(pipe, steps=6)
    assert sorted(set(steps_of(ticks))) == list(range(6))
    stages = [stage for _, _, _, _, stage in ticks]
    assert stages == sorted(stages)
    assert set(stages) == {0, 1}


def test_a_scheduler_with_two_forwards_a_step(ticks: list[Tick]) -> None:
    pipe = tiny.build("wan2.1-i2v")
    pipe.scheduler = FlowMatchHeunDiscreteScheduler(shift=3.0)
    apply(pipe, CONFIG)
    tiny.generate(pipe, steps=3)
    assert sorted(set(steps_of(ticks))) == list(range(5))  # Heun goes over 3 steps in 5 forwards
    assert {steps for _, _, steps, _, _ in ticks} == {5}


def test_a_second_call_another_size_and_an_early_stop(ticks: list[Tick]) -> None:
    pipe = tiny.build("wan2.1-t2v")
    apply(pipe, CONFIG)

    def stop(
        pipe: WanPipeline, step: int, _timestep: object, state: dict[str, Any]
    ) -> dict[str, Any]:
        pipe._interrupt = step == 1
        return state

    tiny.generate(pipe, steps=4, callback_on_step_end=stop)
    tiny.generate(pipe, steps=3, height=96)
    assert sorted(set(steps_of(ticks, 1))) == [0, 1]
    assert sorted(set(steps_of(ticks, 2))) == [0, 1, 2]


def test_an_aborted_call(ticks: list[Tick]) -> None:
    pipe = tiny.build("wan2.1-t2v")
    apply(pipe, CONFIG)

    def abort(
        _pipe: WanPipeline, step: int, _timestep: object, state: dict[str, Any]
    ) -> dict[str, Any]:
        if step == 2:
            raise KeyboardInterrupt
        return state

    with pytest.raises(KeyboardInterrupt):
        tiny.generate(pipe, steps=5, callback_on_step_end=abort)
    tiny.generate(pipe, steps=2)
    assert sorted(set(steps_of(ticks, 1))) == [0, 1, 2]
    assert sorted(set(steps_of(ticks, 2))) == [0, 1]


def drive(
    handle: Handle | None, transformer: Any, step: int, steps: int, batch: int = 1
) -> torch.Tensor:
    if handle is not None:
        handle.set_step(step, steps)
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        output: torch.Tensor = transformer(
            torch.randn(batch, 16, 3, 8, 8, generator=chance),
            timestep=torch.full((batch,), 900.0 - step),
            encoder_hidden_states=torch.randn(batch, 8, 32, generator=chance),
            return_dict=False,
        )[0]
    return output


def test_a_bare_transformer_driven_by_hand(ticks: list[Tick]) -> None:
    transformer = tiny.wan_transformer()
    handle = apply(transformer, CONFIG)
    for _ in range(2):
        for step in range(3):
            drive(handle, transformer, step, 3)
    assert [(call, step, steps) for call, step, steps, _, _ in ticks] == [
        (call, step, 3) for call in (1, 2) for step in range(3)
    ]
    assert handle.stats().layers[0].sparse_calls == 4


def test_a_pipeline_call_ends_what_was_set_by_hand(ticks: list[Tick]) -> None:
    pipe = tiny.build("wan2.1-t2v")
    handle = apply(pipe, CONFIG)
    drive(handle, pipe.transformer, 7, 9)
    assert ticks[-1][1:3] == (7, 9)
    tiny.generate(pipe, steps=3)
    assert [tick[1:3] for tick in ticks[1:]] == [(0, 3), (0, 3), (1, 3), (1, 3), (2, 3), (2, 3)]


def test_another_number_of_steps_is_a_new_call(ticks: list[Tick]) -> None:
    transformer = tiny.wan_transformer()
    handle = apply(transformer, CONFIG)
    drive(handle, transformer, 0, 1)
    drive(handle, transformer, 0, 8)
    drive(handle, transformer, 0, 8)  # the other branch
    assert [(call, steps) for call, _, steps, _, _ in ticks] == [(1, 1), (2, 8), (2, 8)]
    session = handle._runtime.session
    assert session is not None and session.run.steps == 8


def test_guidance_in_one_batch(ticks: list[Tick]) -> None:
    """Both branches in one forward: one tick a step, and each sample gets its own plan."""
    transformer = tiny.wan_transformer()
    handle = apply(transformer, CONFIG)
    outputs = [drive(handle, transformer, step, 3, batch=2) for step in range(3)]
    assert [step for _, step, _, _, _ in ticks] == [0, 1, 2]
    assert outputs[2].shape[0] == 2
    assert handle.stats().layers[0].sparse_calls == 2


def test_a_bare_transformer_without_a_step_stays_dense(ticks: list[Tick]) -> None:
    transformer = tiny.wan_transformer()
    handle = apply(transformer, CONFIG)
    for step in range(3):
        drive(None, transformer, step, 3)
    assert [step for _, step, _, _, _ in ticks] == [0, 1, 2]  # counted, but of how many?
    assert "call handle.set_step(step, steps)" in " ".join(handle.summary().split())
    assert handle.stats().density is None


def test_the_schedulers_own_index_is_the_third_choice() -> None:
    scheduler = SimpleNamespace(timesteps=torch.tensor([9.0, 5.0]), _step_index=1, sigmas=None)
    clock = Clock(SimpleNamespace(scheduler=scheduler))
    assert clock.begin_forward(torch.tensor([5.0]), None)
    assert (clock.step, clock.steps, clock.sigmas()) == (1, 2, None)
    assert not clock.begin_forward(torch.tensor([5.0]), None)
    assert clock.forward_in_step == 1
