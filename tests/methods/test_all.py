"""Every method by name on the real classes of all models, and its settings for each of them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier
from typing import Any

import pytest
import tiny
import torch
from making import normal
from methods_common import SMALL
from torch import Tensor

import svoo
from svoo import VideoLayout
from svoo.catalogue import find_model, models
from svoo.core.heads import all_are_here
from svoo.core.random import seeded
from svoo.methods import find_method
from svoo.methods.svoo.method import SVOOMethod
from svoo.mini import load
from svoo.session.stats import LayerStats

NAMES = [row.name for row in svoo.available_methods() if row.name != "dense"]


def small(name: str, model: str | None = None) -> svoo.MethodConfig:
    config = find_method(name, model)
    return replace(config, dense_steps=0, dense_layers=0, strict=True, **SMALL.get(name, {}))


@pytest.fixture(scope="module", params=tiny.PIPELINES)
def clip(request: pytest.FixtureRequest) -> tuple[Any, torch.Tensor, str]:
    """A pipeline, its dense clip, and the model of the catalogue whose settings methods take."""
    pipe = tiny.build(request.param)
    model = next(row.name for row in models() if row.name.startswith(request.param))
    return pipe, tiny.generate(pipe, steps=2), model


@pytest.mark.parametrize("name", NAMES)
def test_runs_on_every_model(clip: tuple[Any, torch.Tensor, str], name: str) -> None:
    pipe, dense, model = clip
    with svoo.apply(pipe, small(name, model), profile=None) as handle:
        frames = tiny.generate(pipe, steps=2)
        stats = handle.stats()
    assert frames.shape == dense.shape and bool(frames.isfinite().all())
    assert stats.method == name and stats.sparse_calls > 0
    assert stats.density is not None and 0 < stats.density <= 1
    assert stats.density < 1 and not torch.equal(frames, dense)
    experts = {layer.stage for layer in stats.layers if layer.sparse_calls > 0}
    assert experts == ({0, 1} if getattr(pipe, "transformer_2", None) is not None else {0})


@pytest.mark.parametrize("name", NAMES)
def test_runs_by_name(clip: tuple[Any, torch.Tensor, str], name: str) -> None:
    """With the settings for the recognised model, warm-up included: of so few steps all dense."""
    pipe, dense, model = clip
    pipe.register_to_config(_name_or_path=find_model(model).hub_id)
    with svoo.apply(pipe, name, profile=None) as handle:
        frames = tiny.generate(pipe, steps=2)
        assert handle.config == find_method(name, model)
        assert handle.stats().method == name
    assert frames.shape == dense.shape and bool(frames.isfinite().all())


def test_default_mode_runs_on_every_model(clip: tuple[Any, torch.Tensor, str]) -> None:
    pipe, dense, _ = clip
    counts: dict[str, Any] = {"query_clusters": 4, "key_clusters": 8}
    always: dict[str, Any] = {"densest": 1.0, "worst_error": 1e6, "strict": True}
    with svoo.apply(pipe, svoo.SVOOConfig(tolerance=0.05, **counts, **always)) as handle:
        frames = tiny.generate(pipe, steps=4)
        stats = handle.stats()
    assert frames.shape == dense.shape and bool(frames.isfinite().all())
    assert stats.dense_calls == 0 and stats.density is not None and stats.density < 1
    assert stats.error is not None and set(stats.work) == {"clustering", "selection"}
    experts = {layer.stage for layer in stats.layers if layer.sparse_calls > 0}
    assert experts == ({0, 1} if getattr(pipe, "transformer_2", None) is not None else {0})


@pytest.fixture(scope="module")
def mini() -> Any:
    pipe = load()
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.mark.parametrize("name", NAMES)
def test_runs_on_the_embedded_model_with_its_own_settings(mini: Any, name: str) -> None:
    changes: dict[str, Any] = {"measure_recall": True, "measure_error": True}
    if name == "svoo":
        changes["densest"] = 1.0  # of so few tokens it would leave every call dense
    config = replace(find_method(name, "mini"), **changes)
    model = find_model("mini")
    with svoo.apply(mini, config, profile=None) as handle:
        latents = mini(
            "a red circle moves left over a checkered floor", num_frames=5, height=64, width=96,
            num_inference_steps=3, generator=seeded(0), output_type="latent",
        ).frames  # fmt: skip
        stats = handle.stats()
    assert bool(latents.isfinite().all())
    calls = stats.sparse_calls + stats.dense_calls
    assert calls == 3 * 2 * model.layers and stats.sparse_calls > 0
    for layer in stats.layers:
        if layer.sparse_calls > 0:
            assert layer.density_by_head is not None and len(layer.density_by_head) == model.heads
            assert layer.recall is not None and 0 < layer.recall <= 1.0001
            assert layer.error is not None and 0 <= layer.error < 2
    for layer in stats.layers:
        assert all(reason.strip() for reason in layer.dense_reasons)


@pytest.mark.parametrize("mode", [*NAMES, "far", "calibrated"])
@pytest.mark.parametrize("devices", [2, 4])
def test_heads_decide_alike_wherever_they_are(mode: str, devices: int) -> None:
    config = small("svoo" if mode in ("far", "calibrated") else mode)
    if mode == "far":
        config = svoo.SVOOConfig(
            tolerance=0.02, query_clusters=6, key_clusters=12, worst_error=1e6
        )
    if mode == "adaspa":  # so that some heads are good ones
        config = replace(config, recall=0.4)  # type: ignore[call-arg]
    if mode == "calibrated":
        config = replace(config, dense_steps=1)
    layout = VideoLayout(3, 4, 4, text=6, valid_text=torch.tensor([6, 2]))
    strength = torch.tensor([0.1, 0.5, 2, 1, 3, 0.3, 1.5, 4]).view(1, 8, 1, 1)
    tokens = [normal(2, 8, layout.tokens, 16, seed=seed) * strength for seed in range(3)]
    weights = torch.linspace(0.5, 2, 8).expand(1, 2, 8)

    def run(first: int, count: int, gather: Callable[[Tensor], Tensor]) -> Ran:
        session = svoo.Session(
            config, steps=4, layers=2, heads=8, sigmas=torch.linspace(1, 0.1, 4),
            calibrate=mode == "calibrated", head_weights=lambda: weights,
        )  # fmt: skip
        here = [side[:, first : first + count] for side in tokens]
        outputs = [
            session.attend(
                *(side * (1 + 0.1 * step) for side in here), step=step, layer=1, branch=branch,
                head_offset=first, gather_heads=gather, layout=layout,
            )
            for step in range(4) for branch in ("cond", "uncond")
        ]  # fmt: skip
        return torch.stack(outputs), session.stats().layers[0]

    whole, counted = run(0, 8, all_are_here)
    parts = on_devices(
        devices, lambda rank, gather: run(rank * 8 // devices, 8 // devices, gather)
    )
    assert counted.sparse_calls >= 6 and counted.density_by_head is not None
    torch.testing.assert_close(torch.cat([part for part, _ in parts], dim=2), whole)
    for _, here in parts:
        assert here.density_by_head == pytest.approx(counted.density_by_head)
        assert here.sparse_calls == counted.sparse_calls
        assert here.work == pytest.approx(counted.work)


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("group", [1, 2, 3, 8])
@pytest.mark.parametrize("why", ["density", "error"])
def test_a_layer_is_too_dense_or_too_far_off_for_all_heads_or_none(
    monkeypatch: pytest.MonkeyPatch, why: str, group: int, devices: int
) -> None:
    """Heads differ much: some groups of them are beyond the limit, others are not."""
    monkeypatch.setattr(SVOOMethod, "heads_per_plan", lambda *_: group)
    strength = torch.linspace(0.1, 6, 8).view(1, 8, 1, 1)
    query, key, value = (normal(1, 8, 96, 16, seed=seed) for seed in range(3))
    query = query * strength
    settings: dict[str, Any] = {"tolerance": 0.05, "query_clusters": 6, "key_clusters": 24}
    settings["careful_start"] = 0.0
    lenient = svoo.SVOOConfig(**settings, densest=1.0, worst_error=1e6)

    def run(config: svoo.SVOOConfig, first: int, count: int, gather: Gather) -> Ran:
        session = svoo.Session(config, steps=2, layers=1, heads=8)
        shown = [side[:, first : first + count] for side in (query, key, value)]
        outputs = [
            session.attend(
                *shown, step=step, layer=0, branch=branch, head_offset=first, gather_heads=gather
            )
            for step in range(2) for branch in ("cond", "uncond")
        ]  # fmt: skip
        return torch.stack(outputs), session.stats().layers[0]

    free = svoo.Session(lenient, steps=2, layers=1, heads=8)
    free.attend(query, key, value, step=0, layer=0)
    counter = free.statistics.layer(0, 0)
    found = (counter.density if why == "density" else counter.squared_error).value()
    assert found is not None and found.min() < 0.7 * found.mean() < 0.9 * found.max()
    mean = float(found.mean() if why == "density" else found.mean().sqrt())
    name = "densest" if why == "density" else "worst_error"
    # Too dense is too dense; half the tolerance makes half the error.
    beyond = (0, 4) if why == "density" else (3, 1)
    for limit, calls in ((0.99 * mean, beyond), (1.01 * mean, (4, 0))):
        changed: dict[str, Any] = {name: limit}
        config = replace(lenient, **changed)
        whole, _ = run(config, 0, 8, all_are_here)
        parts = on_devices(
            devices,
            partial(
                lambda config, rank, gather: run(
                    config, rank * 8 // devices, 8 // devices, gather
                ),
                config,
            ),
        )
        torch.testing.assert_close(torch.cat([part for part, _ in parts], dim=2), whole)
        for _, here in parts:
            assert (here.sparse_calls, here.dense_calls) == calls


Gather = Callable[[Tensor], Tensor]
Ran = tuple[Tensor, LayerStats]


def on_devices(count: int, run: Callable[[int, Callable[[Tensor], Tensor]], Ran]) -> list[Ran]:
    """Return what every device of so many finds: threads that wait for one another to gather."""
    meeting, shown = Barrier(count, timeout=120), [torch.empty(0)] * count

    def on_device(rank: int) -> Ran:
        def gather(values: Tensor) -> Tensor:
            shown[rank] = values
            meeting.wait()
            gathered = torch.cat(shown)
            meeting.wait()
            return gathered

        try:
            return run(rank, gather)
        except BaseException:
            meeting.abort()
            raise

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(on_device, range(count)))


@pytest.mark.parametrize("name", NAMES)
def test_has_settings_for_every_model(name: str) -> None:
    for model in models():
        config = find_method(name, model.name)
        assert config.name == name and config.as_dict()["method"] == name
        if model.hub_id:
            assert find_method(name, model.hub_id) == config
