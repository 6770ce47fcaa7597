"""`Session`: a method's life in one video, without diffusers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo.backends import Workspace, attend
from svoo.core.far_plan import add_far_terms
from svoo.core.layout import VideoLayout
from svoo.core.plan import BlockPlan, add_text
from svoo.core.quality import recall
from svoo.core.terms import MeanTerms
from svoo.core.validate import check_tokens, default_scale, inference_only
from svoo.errors import ConfigError, SlowBackendError, StrictError
from svoo.methods.base import Call, Corrected, Dense, MethodConfig, Run, unknown
from svoo.profiles.profile import Profile
from svoo.session.stats import LayerCounter, RunStats, Statistics
from svoo.session.summary import summarise

RECALL_ROWS = 64

DenseAttention = Callable[[], Tensor]
"""Runs the model's own attention, `[B, H, N, D]`."""
Observer = Callable[[Call, Tensor, Tensor], None]
"""Is shown the query and key `[B, H, N, D]` of a dense call."""


class Session:
    """One video: plans its attention calls with a method, runs them, counts them.

    A loop of your own makes one session per video and calls `attend` where it called attention;
    diffusers' plug-in does the same. `steps` is the number of denoising steps, `layers` and
    `heads` are those of the transformer (of each, if `stages` take turns). `profile` gives a
    method measured densities; `calibrate=True` lets it measure for itself. See `Run` for the rest.
    """

    def __init__(
        self,
        config: MethodConfig,
        *,
        steps: int,
        layers: int,
        heads: int,
        stages: int = 1,
        guidance: bool = True,
        sigmas: Tensor | None = None,
        stage_of_step: Tensor | None = None,
        profile: Profile | None = None,
        calibrate: bool = False,
        head_weights: Callable[[], Tensor | None] = unknown,
        statistics: Statistics | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        """Start the method; nothing of another video is known to it."""
        for name, count in (("steps", steps), ("layers", layers), ("heads", heads)):
            if not isinstance(count, int) or count < 1:
                raise ConfigError(f"{name} must be a whole number >= 1, got {count!r}")
        self.config = config
        self.statistics = statistics or Statistics()
        self.workspace = Workspace() if workspace is None else workspace
        self.run = Run(
            steps=steps,
            layers=layers,
            heads=heads,
            stages=stages,
            guidance=guidance,
            sigmas=sigmas,
            stage_of_step=stage_of_step,
            profile=profile,
            calibrate=calibrate,
            head_weights=head_weights,
            note=self.statistics.note,
        )
        self.method = config.start(self.run)
        self.observer: Observer | None = None
        self._slow: dict[tuple[torch.device, torch.dtype, int], Dense] = {}

    @inference_only
    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        step: int,
        layer: int,
        stage: int = 0,
        branch: str | Sequence[str] = "cond",
        sample: int = 0,
        head_offset: int = 0,
        layout: VideoLayout | None = None,
        scale: float | None = None,
        dense: DenseAttention | None = None,
    ) -> Tensor:
        """Attend from query `[B, H, N, D]` to key, value `[B, H, M, D]` at a step and layer.

        `branch` is one name, or one for each sample of the batch. `layout` says where the video,
        text and padding are (None: video alone, its grid not known). `dense` runs where the method
        says dense; torch's attention does otherwise.
        """
        check_tokens(query, key, value, finite=False)
        if layout is not None:
            for side in (query, key):
                layout.check(side.shape[0], side.shape[2], values=False)
        counter = self.statistics.layer(stage, layer)
        call = self.describe_call(
            step,
            layer,
            layout,
            query.device,
            stage=stage,
            branch=branch,
            sample=sample,
            head_offset=head_offset,
            scale=scale,
        )
        tokens = query, key, value
        kind = query.device, query.dtype, query.shape[3]
        if kind in self._slow:  # found out before: nothing needs to be planned
            return self.attend_densely(tokens, call, self._slow[kind], dense)
        groups = self._head_groups(query, key)
        decisions = []
        for heads in groups:
            here = replace(call, head_offset=head_offset + heads.start)
            shown = [_video(side[:, heads], layout) for side in tokens]
            decision = self.method.plan(shown[0], shown[1], shown[2], here)
            if isinstance(decision, Dense):
                return self.attend_densely(tokens, call, decision, dense)
            part = query[:, heads], key[:, heads], value[:, heads]
            try:
                decisions.append(self._run(part, here, decision, counter))
            except SlowBackendError as error:
                self._slow[kind] = Dense(str(error))
                return self.attend_densely(tokens, call, self._slow[kind], dense)
        counter.sparse_calls += 1
        counter.density.add(torch.cat([density for _, density in decisions]))
        if len(decisions) == 1:
            return decisions[0][0]
        return torch.cat([output for output, _ in decisions], dim=1)

    def describe_call(
        self,
        step: int,
        layer: int,
        layout: VideoLayout | None,
        device: torch.device,
        *,
        stage: int = 0,
        branch: str | Sequence[str] = "cond",
        sample: int = 0,
        head_offset: int = 0,
        scale: float | None = None,
    ) -> Call:
        """Return what a method is told of a call, its times and its work counted here."""
        counter = self.statistics.layer(stage, layer)

        def watch(phase: str) -> AbstractContextManager[None]:
            return counter.watch.phase(phase, device)

        def count(phase: str, share: float) -> None:
            counter.work[phase] += share

        return Call(
            step,
            layer,
            layout,
            stage=stage,
            branch=branch,
            sample=sample,
            head_offset=head_offset,
            scale=scale,
            watch=watch,
            count=count,
        )

    def attend_densely(
        self,
        tokens: tuple[Tensor, Tensor, Tensor],
        call: Call,
        why: Dense,
        dense: DenseAttention | None = None,
    ) -> Tensor:
        """Attend as the model would have without us, and count it with the reason."""
        if self.config.strict and not why.planned:
            raise StrictError(
                f"strict: the call of layer {call.layer} at step {call.step} would be dense: "
                f"{why.reason}"
            )
        counter = self.statistics.layer(call.stage, call.layer)
        counter.dense_calls += 1
        counter.reasons[why.reason] += 1
        if self.observer is not None:
            with call.watch("measuring"):
                self.observer(call, *tokens[:2])
        with call.watch("dense"):
            if dense is not None:
                return dense()
            mask = None if call.layout is None else call.layout.real_tokens()
            mask = None if mask is None else mask[:, None, None].to(tokens[0].device)
            scale = default_scale(tokens[0], call.scale)
            return scaled_dot_product_attention(*tokens, attn_mask=mask, scale=scale)

    def _head_groups(self, query: Tensor, key: Tensor) -> list[slice]:
        """Return the heads to plan at a time: all, unless the method bounds what a plan takes."""
        heads = query.shape[1]
        bound = getattr(self.method, "heads_per_plan", None)
        size = heads if bound is None else max(1, min(heads, bound(query, key)))
        return [slice(first, min(first + size, heads)) for first in range(0, heads, size)]

    def _run(
        self,
        tokens: tuple[Tensor, Tensor, Tensor],
        call: Call,
        decision: BlockPlan | Corrected,
        counter: LayerCounter,
    ) -> tuple[Tensor, Tensor]:
        """Run a decision of the method: the output `[B, H, N, D]` and the density `[H]`."""
        query, key, value = tokens
        layout = call.layout
        plan = decision.plan if isinstance(decision, Corrected) else decision
        with call.watch("selection"):
            plan = finish_plan(plan, tokens, self.config, layout, call.scale)
        with call.watch("attention"):
            output, lse, backend = attend(
                query,
                key,
                value,
                plan,
                backend=self.config.backend,
                scale=call.scale,
                return_lse=isinstance(decision, Corrected),
                workspace=self.workspace,
            )
            if isinstance(decision, Corrected):
                assert lse is not None  # asked for
                output = correct_video(output, lse, decision, layout)
        counter.backends[backend] += 1
        padding = None if layout is None else layout.padding
        density = plan.density(padding).mean(dim=0)
        if isinstance(decision, Corrected):
            density = (density + decision.extra).clamp(max=1)
        if self.config.measure_recall:
            rows = min(RECALL_ROWS, query.shape[2])
            with call.watch("recall"):
                found = recall(query, key, plan, layout=layout, rows=rows, scale=call.scale)
                counter.recall.add(found.mean(dim=0))
        return output, density

    @property
    def state_bytes(self) -> int:
        """Bytes kept from one attention call to the next."""
        return self.method.state_bytes + self.statistics.nbytes + self.workspace.nbytes

    def stats(self) -> RunStats:
        """Return what happened so far; waits for the device."""
        return RunStats(
            method=self.config.name,
            backend=self.config.backend,
            calls=1,
            steps=self.run.steps,
            budgets=describe_budgets(self.run.profile, calibrate=self.run.calibrate),
            layers=self.statistics.read(),
            state_bytes=self.state_bytes,
            notes=tuple(self.statistics.notes),
        )

    def summary(self) -> str:
        """Return the statistics as a text table."""
        return summarise(self.stats())


def _video(tokens: Tensor, layout: VideoLayout | None) -> Tensor:
    return tokens if layout is None else layout.video_part(tokens)


def finish_plan(
    plan: BlockPlan,
    tokens: Sequence[Tensor],
    config: MethodConfig,
    layout: VideoLayout | None,
    scale: float | None = None,
) -> BlockPlan:
    """Return a method's plan for the video with what all methods have in common: compensation, if
    the config asks for it and the method did not do it, then text and padding."""
    if config.compensate == "mean" and plan.terms is None:
        plan = replace(plan, terms=MeanTerms(plan.key_sizes > 0), check=False)
    if config.compensate == "far" and plan.terms is None:
        query, key, value = (_video(side, layout) for side in tokens)
        plan = add_far_terms(plan, query, key, value, scale=scale)
    return plan if layout is None else add_text(plan, layout, check=False)


def correct_video(
    output: Tensor, lse: Tensor, decision: Corrected, layout: VideoLayout | None
) -> Tensor:
    """Return the output with a method's correction of its video rows."""
    if layout is None or layout.text == 0:
        return decision.correct(output, lse).to(output.dtype)
    video = layout.video_part(output)
    rows = lse.narrow(2, layout.video_start, layout.video)
    video.copy_(decision.correct(video, rows))
    return output


def describe_budgets(profile: Profile | None, *, calibrate: bool) -> str:
    """Say where budgets come from."""
    if profile is not None:
        facts = " ".join(f"{key}={fact}" for key, fact in profile.provenance.items())
        return f"from a profile ({facts or 'no provenance'})"
    return "measured in the warm-up" if calibrate else "none: the method decides alone"
