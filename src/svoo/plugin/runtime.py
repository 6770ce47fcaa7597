"""The runtime of one applied pipeline: from an intercepted attention call to its output."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from svoo.backends import BACKENDS, resolve, run_plan
from svoo.core.density import required_density
from svoo.core.layout import VideoLayout, to_heads_first, to_tokens_first
from svoo.core.plan import BlockPlan
from svoo.core.quality import recall
from svoo.core.random import mix_seeds, seeded
from svoo.methods.base import Call, Method
from svoo.methods.dense import DenseMethod
from svoo.methods.schedule import Dense, Schedule
from svoo.methods.svoo.config import SVOOConfig
from svoo.methods.svoo.method import SVOOMethod
from svoo.plugin.adapters import Adapter, Grid
from svoo.plugin.clock import Clock, Context
from svoo.plugin.intercept import dense_attention
from svoo.plugin.stats import LayerStats
from svoo.profiles.profile import PROFILE_MASS, Profile

MEASURED_ROWS = 128
RECALL_ROWS = 64

Observer = Callable[[Call, Tensor, Tensor], None]


def _new_place() -> Tensor:
    """Return `[forwards, frames, height, width]`: what a compiled forward writes and its layers
    read, because numbers of Python would be part of the graph."""
    with torch.inference_mode(mode=False):  # written in forwards with and without it
        return torch.zeros(4, dtype=torch.int64, device="cpu")


@dataclass
class Stage:
    """One transformer of a pipeline: an expert, if there are two."""

    index: int
    transformer: nn.Module
    adapter: Adapter
    grid: Grid | None = None
    place: Tensor = field(default_factory=_new_place)
    ticks: int = 0  # the forwards that `begin_forward` knows of; `place` may be ahead
    context: Context | None = None
    layers: list[Layer] = field(default_factory=list)


class Layer:
    """One video self-attention: what `seam` calls."""

    def __init__(self, runtime: Runtime, stage: Stage, index: int) -> None:
        """Belong to a stage."""
        self.runtime = runtime
        self.stage = stage
        self.index = index
        self.dense_backend: Any = None
        self.stats = LayerStats()
        self.forward = -1
        self.sample = 0

    @property
    def place(self) -> Tensor:
        """Where the forwards of its stage note their place."""
        return self.stage.place

    def begin(self, place: Tensor) -> None:
        """Begin the forward in which this is the first layer to run, unless a hook has done so."""
        ticks, *grid = place.tolist()
        if ticks != self.stage.ticks:
            self.stage.ticks = ticks
            self.runtime.begin_forward(self.stage, tuple(grid) if all(grid) else None)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
    ) -> Tensor:
        """Attend over `[B, N, H, D]`, sparsely where the schedule says so."""
        return self.runtime.attend(self, query, key, value, mask, scale)

    def dense(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
    ) -> Tensor:
        """Attend as the model would have without us."""
        return dense_attention(
            self.dense_backend, query=query, key=key, value=value, attn_mask=mask, scale=scale
        )


class Runtime:
    """What one applied pipeline remembers: its clock, its method, its budgets, its statistics."""

    def __init__(
        self,
        clock: Clock,
        stages: list[Stage],
        config: SVOOConfig,
        profile: Profile | None,
        *,
        measure: bool,
        dense: bool,
    ) -> None:
        """Use a profile's budgets; or `measure` them in the warm-up; or let mass alone decide."""
        self.clock = clock
        self.stages = stages
        self.config = config
        self.profile = profile
        self.measure = measure and profile is None and not dense
        self.always_dense = dense
        self.method: Method = DenseMethod()
        self.schedule: Schedule | None = None
        self.notes: list[str] = []
        self.observer: Observer | None = None
        self._forwards = 0
        self._measured: dict[tuple[int, int], Tensor] = {}
        self._measured_at: dict[tuple[int, int], int] = {}  # stage, layer -> the step for it

    def begin_forward(self, stage: Stage, grid: Grid | None, timestep: object = None) -> None:
        """Note where a forward of a transformer stands; a new call forgets the one before."""
        stage.grid = grid
        self._forwards += 1
        if self.clock.begin_forward(timestep, stage.context):
            if grid is not None:
                self._compare_tokens(math.prod(grid))
            self._begin_call()
        if self.clock.steps is not None and self.clock.step >= self.clock.steps:
            self.note(
                f"the loop is longer than the scheduler's {self.clock.steps} steps: what lies "
                "beyond is taken as its last step"
            )

    def _compare_tokens(self, tokens: int) -> None:
        """Warn where the profile was measured at another size."""
        measured = self.profile.provenance.get("tokens") if self.profile is not None else None
        if measured is not None and measured != str(tokens):
            text = f"the profile was measured with {measured} video tokens, this run has {tokens}"
            if text not in self.notes:
                warnings.warn(text, stacklevel=2)
            self.note(text)

    def _begin_call(self) -> None:
        self.method.reset()
        self._measured.clear()
        self._measured_at.clear()
        for layer in itertools.chain.from_iterable(stage.layers for stage in self.stages):
            layer.stats.watch.fold()
        steps = self.clock.steps
        if self.always_dense or steps is None:
            self.method, self.schedule = DenseMethod(), None
            if steps is None:
                self.note(
                    "dense: the number of steps is not known; call handle.set_step(step, steps)"
                )
            return
        self.schedule = Schedule(self.config, steps, self._budgets(steps))
        self.method = SVOOMethod(self.config, self.schedule)

    def _budgets(self, steps: int) -> Tensor | None:
        """Return budgets `[steps, layers, heads]`, or None; those to be measured are 0 until
        they are."""
        layers = [len(stage.layers) for stage in self.stages]
        if self.profile is not None:
            sigmas = self.clock.sigmas()
            if sigmas is None:
                self.note("the scheduler has no noise levels: every step takes the profile's mean")
                mean = self.profile.budgets(PROFILE_MASS).mean(dim=0)
                return mean.expand(steps, *mean.shape)
            return self.profile.at_sigmas(sigmas, self._stages_of(sigmas)).budgets(PROFILE_MASS)
        if self.measure and self.config.count_dense_steps(steps) == 0:
            self.note("no dense step to measure budgets in: mass alone decides")
        elif self.measure:
            return torch.zeros(steps, max(layers), self._heads())
        return None

    def _stages_of(self, sigmas: Tensor) -> Tensor:
        pipeline: Any = self.clock.pipeline
        boundary = getattr(getattr(pipeline, "config", None), "boundary_ratio", None)
        if boundary is None or len(self.stages) == 1:
            return torch.zeros(len(sigmas), dtype=torch.int64)
        return (sigmas < boundary).long()

    def _heads(self) -> int:
        config: Any = self.stages[0].transformer.config
        return int(config.num_attention_heads)

    def attend(
        self,
        layer: Layer,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float | None,
    ) -> Tensor:
        """Attend over `[B, N, H, D]`: ask the method, run its plan, or stay dense and say why."""
        # Some processors call attention once for every sample of a batch.
        layer.sample = layer.sample + 1 if layer.forward == self._forwards else 0
        layer.forward = self._forwards
        layout = _read_layout(layer.stage, query, mask)
        if isinstance(layout, Dense):
            return self._attend_densely(layer, layout, query, key, value, mask, scale)
        stage, device = layer.stage, query.device
        step = self.clock.step

        def watch(phase: str) -> AbstractContextManager[None]:
            return layer.stats.watch.phase(phase, device)

        call = Call(
            step,
            layer.index,
            layout,
            stage=stage.index,
            branch=self.clock.branch(stage.context),
            sample=layer.sample,
            scale=scale,
            watch=watch,
        )
        wide = to_heads_first(query), to_heads_first(key), to_heads_first(value)
        decision = self._must_measure(layer) or self.method.plan(*wide, call)
        if isinstance(decision, Dense):
            self._measure(layer, layout, *wide[:2], scale)
            if self.observer is not None:
                with watch("measuring"):
                    self.observer(call, *wide[:2])
            return self._attend_densely(layer, decision, query, key, value, mask, scale)
        with watch("attention"):
            output = run_plan(*wide, decision, backend=self.config.backend, scale=scale)
        self._note_plan(layer, layout, decision, wide[0], wide[1], scale)
        return to_tokens_first(output)

    def _attend_densely(
        self,
        layer: Layer,
        why: Dense,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float | None,
    ) -> Tensor:
        layer.stats.dense_calls += 1
        layer.stats.reasons[why.reason] += 1
        with layer.stats.watch.phase("dense", query.device):
            return layer.dense(query, key, value, mask, scale)

    def _must_measure(self, layer: Layer) -> Dense | None:
        """Return dense in the first step of a layer that had no warm-up but needs budgets: of an
        expert that came later, or skipped by a cache."""
        if not self._measures or layer.index < self.config.dense_layers:
            return None
        assert self.schedule is not None
        place, step = (layer.stage.index, layer.index), self.clock.step
        if isinstance(self.schedule.at(step, layer.index), Dense):
            return None
        if self._measured_at.setdefault(place, step) != step:
            return None
        warm = any(at < step for (stage, _), at in self._measured_at.items() if stage == place[0])
        if warm:
            return Dense("skipped in the warm-up, dense to measure its budgets")
        return Dense("the first step of this expert is dense to measure its budgets")

    @property
    def _measures(self) -> bool:
        return self.measure and self.schedule is not None and self.schedule.budgets is not None

    def _measure(
        self, layer: Layer, layout: VideoLayout, query: Tensor, key: Tensor, scale: float | None
    ) -> None:
        """Measure a layer's budgets in its last dense step, once."""
        place = layer.stage.index, layer.index
        if not self._measures or place in self._measured or layer.index < self.config.dense_layers:
            return
        assert self.schedule is not None and self.schedule.budgets is not None
        step, warm_up = self.clock.step, self.config.count_dense_steps(self.schedule.steps)
        if step < warm_up - 1:
            return
        self._measured_at.setdefault(place, step)
        with layer.stats.watch.phase("measuring", query.device):
            video = layout.video_part(query), layout.video_part(key)
            found = required_density(
                *video,
                mass=PROFILE_MASS,
                rows=min(MEASURED_ROWS, layout.video),
                scale=scale,
                generator=seeded(mix_seeds(self.config.seed, *place)),
                exact=False,
            )
            self._measured[place] = found.value.amax(dim=0).cpu()  # the most that a sample needs
        self.schedule.budgets[step:, layer.index] = self._measured[place]

    def _note_plan(
        self,
        layer: Layer,
        layout: VideoLayout,
        plan: BlockPlan,
        query: Tensor,
        key: Tensor,
        scale: float | None,
    ) -> None:
        stats = layer.stats
        stats.sparse_calls += 1
        stats.backends[resolve(self.config.backend, query, plan).name] += 1
        stats.density.add(plan.density(layout.padding).mean(dim=0))
        if self.config.measure_recall:
            rows = min(RECALL_ROWS, query.shape[2])
            with stats.watch.phase("recall", query.device):
                found = recall(query, key, plan, layout=layout, rows=rows, scale=scale)
                stats.recall.add(found.mean(dim=0))

    @property
    def state_bytes(self) -> int:
        """Bytes kept from one attention call to the next: what the method remembers, the sums of
        the statistics, and the workspaces of the backends in use."""
        statistics = [layer.stats for stage in self.stages for layer in stage.layers]
        used = {name for stats in statistics for name in stats.backends}
        workspaces = sum(b.workspace_bytes for b in BACKENDS if b.name in used)
        return self.method.state_bytes + sum(stats.nbytes for stats in statistics) + workspaces

    def note(self, text: str) -> None:
        """Tell something in the statistics, once."""
        if text not in self.notes:
            self.notes.append(text)


def _read_layout(stage: Stage, query: Tensor, mask: Tensor | None) -> VideoLayout | Dense:
    """Return the layout of a sequence `[B, N, H, D]`, or dense with what is not understood."""
    if stage.grid is None:
        return Dense("the grid of the video is not known")
    frames, height, width = stage.grid
    text = query.shape[1] - frames * height * width
    if text < 0:
        return Dense(
            f"{query.shape[1]} tokens are fewer than the grid {frames} x {height} x {width}"
        )
    if mask is None:
        return VideoLayout(frames, height, width, text, stage.adapter.text_first)
    batch, tokens = query.shape[:2]
    expected = (batch, 1, tokens if stage.adapter.square_mask else 1, tokens)
    if not stage.adapter.prefix_mask or mask.dtype != torch.bool or mask.shape != expected:
        return Dense(f"an attention mask {list(mask.shape)} of {mask.dtype} is not understood")
    valid = mask[:, 0, 0].sum(dim=-1) - frames * height * width  # what a video token may see
    return VideoLayout(frames, height, width, text, stage.adapter.text_first, valid)
