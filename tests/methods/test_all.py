"""Every method by name on the real classes of all models, and its settings for each of them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
from svoo.catalogue import models
from svoo.core.heads import all_are_here
from svoo.methods import find_method
from svoo.session.stats import LayerStats

NAMES = [row.name for row in svoo.available_methods() if row.name != "dense"]


def small(name: str) -> svoo.MethodConfig:
    config = find_method(name)
    return replace(config, dense_steps=0, dense_layers=0, strict=True, **SMALL.get(name, {}))


@pytest.fixture(scope="module", params=tiny.PIPELINES)
def clip(request: pytest.FixtureRequest) -> tuple[Any, torch.Tensor]:
    """A pipeline, and its dense clip."""
    pipe = tiny.build(request.param)
    return pipe, tiny.generate(pipe, steps=2)


@pytest.mark.parametrize("name", NAMES)
def test_runs_on_every_model(clip: tuple[Any, torch.Tensor], name: str) -> None:
    pipe, dense = clip
    with svoo.apply(pipe, small(name), profile=None) as handle:
        frames = tiny.generate(pipe, steps=2)
        stats = handle.stats()
    assert frames.shape == dense.shape and bool(frames.isfinite().all())
    assert stats.method == name and stats.sparse_calls > 0
    assert stats.density is not None and 0 < stats.density <= 1
    if name in SMALL:
        assert stats.density < 1 and not torch.equal(frames, dense)


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
