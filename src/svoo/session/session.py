"""`Session`: all attention calls of one video with one method, without diffusers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo.backends import Workspace, attend
from svoo.core.heads import all_are_here
from svoo.core.layout import VideoLayout
from svoo.core.plan import BlockPlan
from svoo.core.quality import recall, sampled_error
from svoo.core.validate import check_tokens, default_scale, inference_only
from svoo.errors import SlowBackendError
from svoo.methods.base import Call, Corrected, Dense, MethodConfig, Run, unknown
from svoo.profiles.profile import Profile
from svoo.session.checks import check_call, check_config, check_layout, check_run
from svoo.session.finish import check_strict, correct_video, finish_plan, video_part
from svoo.session.heads import call_of_heads, groups_of_heads, split_heads
from svoo.session.stats import RunStats, Statistics
from svoo.session.summary import describe_budgets, summarise
from svoo.session.worth import why_dense_pays

RECALL_ROWS = 64
ERROR_ROWS = 8  # queries per head and call that are computed exactly
JUDGED_ROWS = 64  # where much hangs on it

DenseAttention = Callable[[], Tensor]
"""Runs the model's own attention, `[B, H, N, D]`."""
Observer = Callable[[Call, Tensor, Tensor], None]
"""Is called with each dense call and its query and key `[B, H, N, D]`."""
GatherHeads = Callable[[Tensor], Tensor]
"""Turns one value per head here `[h, ...]` into one per head on all devices `[H, ...]`."""


@dataclass(frozen=True, eq=False)
class _Part:
    """A group of heads that was run: output `[B, H, N, D]`, the other numbers `[H]`."""

    output: Tensor
    density: Tensor
    recall: Tensor | None
    squared_error: Tensor | None
    backend: str
    verdict: Dense | None  # why the layer has to be dense after all


class Session:
    """One video: plans its attention calls with a method, runs them and counts them.

    Make one session per video, and call `attend` instead of your attention function; diffusers'
    plug-in does the same. `steps` is the number of denoising steps, `stages` the number of
    transformers (experts), `layers` and `heads` those of each transformer. `profile` holds
    measured densities for the method; `calibrate=True` lets the method measure its own. `Run`
    explains the rest.
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
        """Start the method for a new video."""
        check_config(config)
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
        check_run(self.run)
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
        gather_heads: GatherHeads = all_are_here,
        layout: VideoLayout | None = None,
        scale: float | None = None,
        dense: DenseAttention | None = None,
    ) -> Tensor:
        """Attend from query `[B, H, N, D]` to key, value `[B, H, M, D]`, in a step and a layer.

        A step beyond the last is taken as the last.
        `branch` is one name, or one name per sample of the batch. `layout` says which tokens are
        video, text and padding (None: all are video, and the grid is not known). Where the method
        decides for dense, `dense` runs; None: torch's attention. Where heads are spread over
        devices, `head_offset` is the number of the first one here, and `gather_heads` asks all
        devices: for what looks across heads, and for the statistics.
        """
        check_tokens(query, key, value, finite=False)
        check_layout(layout, query, key, values=False)
        check_call(self.run, query, step, layer, stage, branch, head_offset)
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
            gather_heads=gather_heads,
            scale=scale,
        )
        tokens = query, key, value
        kind = query.device, query.dtype, query.shape[3]
        if kind in self._slow:  # found out before: nothing needs to be planned
            return self.attend_densely(tokens, call, self._slow[kind], dense)
        all_heads = self.run.heads  # of all devices, so that their number decides nothing
        small = why_dense_pays(query, key, all_heads) if self.config.backend == "auto" else None
        if small is not None:
            return self.attend_densely(tokens, call, Dense(small), dense)
        groups = groups_of_heads(self.method, query, key)
        done: list[_Part] = []
        for number, heads in enumerate(groups):
            here = call_of_heads(call, heads, query.shape[1])
            decision = self._plan(heads, tokens, here)
            if isinstance(decision, Dense):
                if decision.planned:  # what it measures meanwhile, it measures of all heads
                    for others in groups[number + 1 :]:
                        self._plan(others, tokens, call_of_heads(call, others, query.shape[1]))
                return self.attend_densely(tokens, call, decision, dense)
            part = query[:, heads], key[:, heads], value[:, heads]
            for some, own in split_heads(decision, part, self.config):
                try:
                    ran = self._run(tuple(side[:, some] for side in part), here, own)
                except SlowBackendError as error:
                    self._slow[kind] = Dense(str(error))
                    return self.attend_densely(tokens, call, self._slow[kind], dense)
                if ran.verdict is not None:
                    return self.attend_densely(tokens, call, ran.verdict, dense)
                done.append(ran)
        counter.sparse_calls += 1
        counter.backends.update({part.backend for part in done})
        counter.density.add(gather_heads(torch.cat([part.density for part in done])))
        recalls = [part.recall for part in done if part.recall is not None]
        if recalls:
            counter.recall.add(gather_heads(torch.cat(recalls)))
        errors = [part.squared_error for part in done if part.squared_error is not None]
        if errors:
            counter.squared_error.add(gather_heads(torch.cat(errors)))
        return done[0].output if len(done) == 1 else torch.cat([p.output for p in done], dim=1)

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
        gather_heads: GatherHeads = all_are_here,
        scale: float | None = None,
    ) -> Call:
        """Return what a method is told of a call; its times and work go to this session's
        statistics."""
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
            total_heads=self.run.heads,
            gather_heads=gather_heads,
        )

    def attend_densely(
        self,
        tokens: tuple[Tensor, Tensor, Tensor],
        call: Call,
        why: Dense,
        dense: DenseAttention | None = None,
    ) -> Tensor:
        """Attend densely, by `dense` or torch's attention, and count the call with its reason.

        Refuses with `StrictError` under `strict=True`, unless the method planned to be dense.
        """
        check_strict(self.config, why, f"the call of layer {call.layer} at step {call.step}")
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

    def _plan(
        self, heads: slice, tokens: tuple[Tensor, ...], call: Call
    ) -> BlockPlan | Corrected | Dense:
        """Ask the method for these heads."""
        shown = [video_part(side[:, heads], call.layout) for side in tokens]
        return self.method.plan(shown[0], shown[1], shown[2], call)

    def _run(
        self,
        tokens: tuple[Tensor, ...],
        call: Call,
        decision: BlockPlan | Corrected,
    ) -> _Part:
        """Run what the method decided."""
        query, key, value = tokens
        layout, squared_error, verdict = call.layout, None, None
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
            judge = self.method.judge(call) if hasattr(self.method, "judge") else None
            if self.config.measure_error or judge is not None:  # a part of what the call takes
                found = sampled_error(
                    query,
                    key,
                    value,
                    output,
                    rows=ERROR_ROWS if judge is None else JUDGED_ROWS,
                    generator=call.chance(self.config.seed),
                    layout=layout,
                    scale=call.scale,
                )
                error = found.mean(dim=0)
                if self.config.measure_error:
                    squared_error = error
                if judge is not None:
                    verdict = judge(error)
        padding = None if layout is None else layout.padding
        density = plan.density(padding).mean(dim=0)
        if isinstance(decision, Corrected):
            density = (density + decision.extra).clamp(max=1)
        kept = None
        if self.config.measure_recall:
            rows = min(RECALL_ROWS, query.shape[2])
            with call.watch("recall"):
                found = recall(query, key, plan, layout=layout, rows=rows, scale=call.scale)
                kept = found.mean(dim=0)
        return _Part(output, density, kept, squared_error, backend, verdict)

    @property
    def state_bytes(self) -> int:
        """Bytes kept between attention calls."""
        return self.method.state_bytes + self.statistics.nbytes + self.workspace.nbytes

    def stats(self) -> RunStats:
        """Return what happened so far; waits for the device."""
        return RunStats(
            method=self.config.name,
            backend=self.config.backend,
            calls=1,
            steps=self.run.steps,
            budgets=describe_budgets(self.config, self.run.profile, calibrate=self.run.calibrate),
            layers=self.statistics.read(),
            state_bytes=self.state_bytes,
            notes=tuple(self.statistics.notes),
        )

    def summary(self) -> str:
        """Return the statistics as a text table."""
        return summarise(self.stats())
