"""The runtime of one applied pipeline: from diffusers' signals to a `Session` per video."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from svoo.backends import Workspace
from svoo.core.layout import VideoLayout, to_heads_first, to_tokens_first
from svoo.methods.base import Dense, MethodConfig
from svoo.plugin.adapters import Adapter, Grid, count_heads, weigh_heads
from svoo.plugin.clock import Clock, Context
from svoo.plugin.intercept import dense_attention
from svoo.profiles.profile import Profile
from svoo.session.session import Observer, Session, describe_budgets
from svoo.session.stats import RunStats, Statistics

# Fewer video tokens than this, and planning costs about what sparse attention saves.
LEAST_TOKENS = {"cpu": 1_000}
LEAST_TOKENS_ELSEWHERE = 8_000


def _new_signals() -> Tensor:
    """Return `[forwards, frames, height, width, batch]`: a compiled forward writes them and its
    layers read them. A Python number would be baked into the compiled graph."""
    with torch.inference_mode(mode=False):  # written in forwards with and without it
        return torch.zeros(5, dtype=torch.int64, device="cpu")


@dataclass
class Stage:
    """One transformer of a pipeline: an expert, if there are two."""

    index: int
    transformer: nn.Module
    adapter: Adapter
    attentions: list[nn.Module] = field(default_factory=list)
    grid: Grid | None = None
    batch: int = 1
    signals: Tensor = field(default_factory=_new_signals)
    forwards: int = 0  # those that `begin_forward` knows of; `signals` may be ahead
    context: Context | None = None
    layers: list[Layer] = field(default_factory=list)


class Layer:
    """One video self-attention: what `intercept` calls."""

    def __init__(self, runtime: Runtime, stage: Stage, index: int) -> None:
        """Belong to a stage."""
        self.runtime = runtime
        self.stage = stage
        self.index = index
        self.dense_backend: Any = None
        self.forward = -1
        self.sample = 0

    @property
    def signals(self) -> Tensor:
        """What the forwards of its stage write for it."""
        return self.stage.signals

    def begin(self, signals: Tensor) -> None:
        """Begin the forward in which this is the first layer to run, unless a hook has done so."""
        forwards, *grid, batch = signals.tolist()
        if forwards != self.stage.forwards:
            self.stage.forwards, self.stage.batch = forwards, batch
            self.runtime.begin_forward(self.stage, tuple(grid) if all(grid) else None)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
    ) -> Tensor:
        """Attend over `[B, N, H, D]`, sparsely where the method says so."""
        return self.runtime.attend(self, query, key, value, mask, scale)


class Runtime:
    """What one applied pipeline remembers: its clock, its statistics, and the present video's
    session."""

    def __init__(
        self,
        clock: Clock,
        stages: list[Stage],
        config: MethodConfig,
        profile: Profile | None,
        *,
        calibrate: bool,
        small_stay_dense: bool,
    ) -> None:
        """Run a method, with a profile if there is one; `calibrate` lets it measure for itself.
        `small_stay_dense`: videos too small to gain anything are left to the model."""
        self.clock = clock
        self.stages = stages
        self.config = config
        self.profile = profile
        self.calibrate = calibrate and profile is None
        self.small_stay_dense = small_stay_dense
        self.statistics = Statistics()
        self.workspace = Workspace()  # of all videos; `forget` frees it
        self.observer: Observer | None = None
        self.session: Session | None = None
        self._forwards = 0

    def begin_forward(self, stage: Stage, grid: Grid | None, timestep: object = None) -> None:
        """Note where a forward of a transformer stands; a new call forgets the one before."""
        stage.grid = grid
        self._forwards += 1
        if self.clock.begin_forward(timestep, stage.context):
            if grid is not None:
                self._compare_tokens(math.prod(grid))
            self._begin_video()
        if self.clock.steps is not None and self.clock.step >= self.clock.steps:
            self.statistics.note(
                f"the loop is longer than the scheduler's {self.clock.steps} steps: what lies "
                "beyond is taken as its last step"
            )

    def _compare_tokens(self, tokens: int) -> None:
        """Warn where the profile was measured at another size."""
        measured = self.profile.provenance.get("tokens") if self.profile is not None else None
        if measured is not None and measured != str(tokens):
            text = f"the profile was measured with {measured} video tokens, this run has {tokens}"
            if text not in self.statistics.notes:
                warnings.warn(text, stacklevel=2)
            self.statistics.note(text)

    def _begin_video(self) -> None:
        self.statistics.fold()
        steps, sigmas = self.clock.steps, self.clock.sigmas()
        self.session = Session(
            self.config,
            steps=steps or 1,
            layers=max(len(stage.layers) for stage in self.stages),
            heads=count_heads(self.stages[0].transformer),
            stages=len(self.stages),
            sigmas=sigmas,
            stage_of_step=None if sigmas is None else self._stages_of(sigmas),
            profile=self.profile,
            calibrate=self.calibrate,
            head_weights=self._head_weights,
            statistics=self.statistics,
            workspace=self.workspace,
        )
        self.session.observer = self.observer

    def _stages_of(self, sigmas: Tensor) -> Tensor:
        pipeline: Any = self.clock.pipeline
        boundary = getattr(getattr(pipeline, "config", None), "boundary_ratio", None)
        if boundary is None or len(self.stages) == 1:
            return torch.zeros(len(sigmas), dtype=torch.int64)
        return (sigmas < boundary).long()

    @functools.cached_property
    def _weights(self) -> Tensor | None:
        return weigh_heads([stage.attentions for stage in self.stages])

    def _head_weights(self) -> Tensor | None:
        return self._weights

    def attend(
        self,
        layer: Layer,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float | None,
    ) -> Tensor:
        """Attend over `[B, N, H, D]`: ask the session, or stay dense and say why."""
        # Some processors call attention once for every sample of a batch.
        layer.sample = layer.sample + 1 if layer.forward == self._forwards else 0
        layer.forward = self._forwards
        stage, session = layer.stage, self.session
        assert session is not None  # a forward has begun
        branch, sample = self._branch(layer, len(query))
        wide = to_heads_first(query), to_heads_first(key), to_heads_first(value)

        def dense() -> Tensor:
            output = dense_attention(
                layer.dense_backend,
                query=query,
                key=key,
                value=value,
                attn_mask=mask,
                scale=scale,
            )
            return to_heads_first(output)

        layout = _read_layout(stage, query, mask)
        why = self._why_dense(layout, query.device)
        if why is not None:
            known = None if isinstance(layout, Dense) else layout
            call = session.describe_call(
                self.clock.step, layer.index, known, query.device, stage=stage.index, scale=scale
            )
            return to_tokens_first(session.attend_densely(wide, call, why, dense))
        assert isinstance(layout, VideoLayout)
        output = session.attend(
            *wide,
            step=self.clock.step,
            layer=layer.index,
            stage=stage.index,
            branch=branch,
            sample=sample,
            layout=layout,
            scale=scale,
            dense=dense,
        )
        return to_tokens_first(output)

    def _why_dense(self, layout: VideoLayout | Dense, device: torch.device) -> Dense | None:
        """Return why the method is not even asked, or None."""
        if isinstance(layout, Dense):
            return layout
        if self.clock.steps is None:
            return Dense("the number of steps is not known; call handle.set_step(step, steps)")
        least = LEAST_TOKENS.get(device.type, LEAST_TOKENS_ELSEWHERE)
        if self.small_stay_dense and layout.video < least:
            return Dense(
                f"{layout.video} video tokens are too few for sparse attention to pay (below "
                f"{least}); a method that is asked for by name runs all the same"
            )
        return None

    def _branch(self, layer: Layer, batch: int) -> tuple[str | Sequence[str], int]:
        """Return the branch of a call, or of each of its samples, and which video it is of."""
        name = self.clock.branch(layer.stage.context).removeprefix("pred_")
        if name != "cond_uncond":
            return name, layer.sample
        # One forward for both branches: diffusers puts the unconditional half first.
        half = layer.stage.batch // 2
        if batch == layer.stage.batch:
            return ("uncond",) * half + ("cond",) * half, 0
        return ("uncond" if layer.sample < half else "cond"), layer.sample % max(1, half)

    @property
    def state_bytes(self) -> int:
        """Bytes kept from one attention call to the next: what the method remembers, the sums of
        the statistics, and the workspaces of the backends in use."""
        state = 0 if self.session is None else self.session.method.state_bytes
        return state + self.statistics.nbytes + self.workspace.nbytes

    def forget(self) -> None:
        """Let go of what the present video's method remembers, and of the backends' memory."""
        self.session = None
        self.workspace.clear()

    def stats(self) -> RunStats:
        """Return what happened so far; waits for the device."""
        for stage in self.stages:
            for layer in stage.layers:
                self.statistics.layer(stage.index, layer.index)  # also those never called
        return RunStats(
            method=self.config.name,
            backend=self.config.backend,
            calls=self.clock.call,
            steps=self.clock.steps,
            budgets=describe_budgets(self.profile, calibrate=self.calibrate),
            layers=self.statistics.read(),
            state_bytes=self.state_bytes,
            notes=tuple(self.statistics.notes),
        )


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
