"""The runtime of an applied pipeline: it reads diffusers' state and drives one `Session` per
video."""

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
from svoo.core.heads import all_are_here
from svoo.core.layout import VideoLayout, to_heads_first, to_tokens_first
from svoo.methods.base import Dense, MethodConfig
from svoo.plugin.adapters import Adapter, Grid, count_heads, weigh_heads
from svoo.plugin.clock import Clock, Context
from svoo.plugin.intercept import dense_attention
from svoo.plugin.parallel import Split, find_split
from svoo.profiles.profile import Profile
from svoo.session.finish import check_strict
from svoo.session.session import Observer, Session
from svoo.session.stats import RunStats, Statistics
from svoo.session.summary import describe_budgets

# With fewer video tokens than this, planning costs about as much as sparse attention saves.
LEAST_TOKENS = {"cpu": 1_000}
LEAST_TOKENS_ELSEWHERE = 8_000


def _new_signals() -> Tensor:
    """Return int64 `[forwards, frames, height, width, batch]`, which each forward of a transformer
    writes and its layers read.

    A tensor, because a compiled graph would keep the value that a Python number had when it was
    traced.
    """
    with torch.inference_mode(mode=False):  # forwards write to it inside and outside that mode
        return torch.zeros(5, dtype=torch.int64, device="cpu")


@dataclass
class Stage:
    """One transformer of a pipeline. Wan 2.2 has two, its experts."""

    index: int
    transformer: nn.Module
    adapter: Adapter
    attentions: list[nn.Module] = field(default_factory=list)
    grid: Grid | None = None
    batch: int = 1
    signals: Tensor = field(default_factory=_new_signals)
    forwards: int = 0  # those already begun; `signals[0]` may be ahead in a compiled graph
    context: Context | None = None
    layers: list[Layer] = field(default_factory=list)
    split: Split | None = None  # over ranks


class Layer:
    """One video self-attention layer: `intercept` calls its `begin` and `attend`."""

    def __init__(self, runtime: Runtime, stage: Stage, index: int) -> None:
        """Make layer `index` (from 0) of a stage."""
        self.runtime = runtime
        self.stage = stage
        self.index = index
        self.dense_backend: Any = None
        self.forward = -1
        self.sample = 0

    @property
    def signals(self) -> Tensor:
        """The numbers that each forward of its stage writes: see `_new_signals`."""
        return self.stage.signals

    def begin(self, signals: Tensor) -> None:
        """Begin the present forward, if neither a hook nor an earlier layer has done so."""
        forwards, *grid, batch = signals.tolist()
        if forwards != self.stage.forwards:
            self.stage.forwards, self.stage.batch = forwards, batch
            self.runtime.begin_forward(self.stage, tuple(grid) if all(grid) else None)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
    ) -> Tensor:
        """Attend from query to key, value `[B, N, H, D]`: sparse or dense, as the method says."""
        return self.runtime.attend(self, query, key, value, mask, scale)

    def bypass(self, processor: type) -> None:
        """Count a call in which a processor attended by itself, past us: a dense one."""
        reason = f"{processor.__name__} attends by itself, past svoo"
        check_strict(self.runtime.config, Dense(reason), f"the call of layer {self.index}")
        counter = self.runtime.statistics.layer(self.stage.index, self.index)
        counter.dense_calls += 1
        counter.reasons[reason] += 1


class Runtime:
    """The state of an applied pipeline: its clock, its statistics, and the session of the present
    video."""

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
        """Prepare to run the method of `config`.

        `profile` holds measured densities; without one, `calibrate` lets the method measure its
        own. `small_stay_dense`: a video too small to gain anything stays dense.
        """
        self.clock = clock
        self.stages = stages
        self.config = config
        self.profile = profile
        self.calibrate = calibrate and profile is None
        self.small_stay_dense = small_stay_dense
        self.statistics = Statistics()
        self.workspace = Workspace()  # used by all videos; `forget` frees it
        self.observer: Observer | None = None
        self.session: Session | None = None
        self._forwards = 0

    def begin_forward(self, stage: Stage, grid: Grid | None, timestep: object = None) -> None:
        """Note that a forward of a transformer begins, with the grid of its video.

        If it is the first of a new pipeline call, a new session begins.
        """
        stage.grid = grid
        heads = count_heads(stage.transformer)
        stage.split = find_split(stage.attentions[0], heads)
        if stage.split is not None:
            self.statistics.note(
                f"{heads} heads are shared by {stage.split.degree} ranks: densities are those of "
                f"all heads, times and bytes those of rank {stage.split.rank}"
            )
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
        """Warn once if the profile was measured with another number of tokens."""
        measured = self.profile.provenance.get("tokens") if self.profile is not None else None
        if measured is not None and measured != str(tokens):
            text = f"the profile was measured with {measured} video tokens, this run has {tokens}"
            if text not in self.statistics.notes:
                warnings.warn(text, stacklevel=2)
            self.statistics.note(text)

    def _begin_video(self) -> None:
        """Start a new session: nothing that the method learned of the last video stays."""
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
        """Return the stage of each step, int64 `[steps]`, from its noise level `[steps]`."""
        pipeline: Any = self.clock.pipeline
        boundary = getattr(getattr(pipeline, "config", None), "boundary_ratio", None)
        if boundary is None or len(self.stages) == 1:
            return torch.zeros(len(sigmas), dtype=torch.int64)
        return (sigmas < boundary).long()

    @functools.cached_property
    def _weights(self) -> Tensor | None:
        return weigh_heads([(stage.transformer, stage.adapter) for stage in self.stages])

    def _head_weights(self) -> Tensor | None:
        if self._weights is None:
            self.statistics.note(
                "the output projections do not tell how much each head counts: all count the "
                "same, for which no tolerance was chosen"
            )
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
        """Attend from query to key, value `[B, N, H, D]`: through the session, or dense with the
        reason."""
        # Some processors call attention once per sample: then `sample` counts these calls.
        layer.sample = layer.sample + 1 if layer.forward == self._forwards else 0
        layer.forward = self._forwards
        stage, session = layer.stage, self.session
        assert session is not None  # a forward has begun
        branch, sample = self._branch(layer, len(query))
        split, video = stage.split, math.prod(stage.grid or (0,))
        mixed = split is not None and 0 < video < query.shape[1]
        if split is not None and mixed:
            query, key, value = (split.video_first(side, video) for side in (query, key, value))
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
            output = session.attend_densely(wide, call, why, dense)
        else:
            assert isinstance(layout, VideoLayout)
            output = session.attend(
                *wide,
                step=self.clock.step,
                layer=layer.index,
                stage=stage.index,
                branch=branch,
                sample=sample,
                head_offset=0 if split is None else split.first_head(session.run.heads),
                gather_heads=all_are_here if split is None else split.gather,
                layout=layout,
                scale=scale,
                dense=dense,
            )
        output = to_tokens_first(output)
        return output if split is None or not mixed else split.as_exchanged(output, video)

    def _why_dense(self, layout: VideoLayout | Dense, device: torch.device) -> Dense | None:
        """Return why a call is dense before the method is asked, or None."""
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
        """Return the guidance branch of a call, or one per sample of its batch; and the number of
        its video, where each sample has a call of its own."""
        name = self.clock.branch(layer.stage.context).removeprefix("pred_")
        if name != "cond_uncond":
            return name, layer.sample
        half, odd = divmod(layer.stage.batch, 2)
        if odd or not self.clock.guided:
            return "cond", layer.sample
        # One forward for both branches: diffusers puts the unconditional half first.
        if batch == layer.stage.batch:
            return ("uncond",) * half + ("cond",) * half, 0
        return ("uncond" if layer.sample < half else "cond"), layer.sample % half

    @property
    def state_bytes(self) -> int:
        """Bytes kept between attention calls: state of the method, sums of the statistics, and
        workspaces of the backends."""
        state = 0 if self.session is None else self.session.method.state_bytes
        return state + self.statistics.nbytes + self.workspace.nbytes

    def forget(self) -> None:
        """Free the present session and the backends' workspaces."""
        self.session = None
        self.workspace.clear()

    def stats(self) -> RunStats:
        """Return what happened so far; waits for the device."""
        for stage in self.stages:
            for layer in stage.layers:
                self.statistics.layer(stage.index, layer.index)  # a row for uncalled layers too
        return RunStats(
            method=self.config.name,
            backend=self.config.backend,
            calls=self.clock.call,
            steps=self.clock.steps,
            budgets=describe_budgets(self.config, self.profile, calibrate=self.calibrate),
            layers=self.statistics.read(),
            state_bytes=self.state_bytes,
            notes=tuple(self.statistics.notes),
        )


def _read_layout(stage: Stage, query: Tensor, mask: Tensor | None) -> VideoLayout | Dense:
    """Return the layout of a sequence `[B, N, H, D]`, or `Dense` with what is not understood."""
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
    valid = mask[:, 0, 0].sum(dim=-1) - frames * height * width  # real text tokens
    return VideoLayout(frames, height, width, text, stage.adapter.text_first, valid)
