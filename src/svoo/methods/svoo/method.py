"""SVOO: co-cluster, select, plan; labels live for a few steps and are shared by the guidance
branches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from svoo.core.clustering import CoClusters, co_cluster, default_clusters, from_labels, k_means
from svoo.core.layout import VideoLayout
from svoo.core.plan import BlockPlan, plan_from_clusters
from svoo.core.random import mix_seeds, seeded
from svoo.core.selection import BlockScore, by_mass, select_blocks
from svoo.core.validate import inference_only
from svoo.methods.base import Call, Watch, unwatched
from svoo.methods.schedule import Dense, Schedule
from svoo.methods.svoo.config import SVOOConfig

ScoreMaker = Callable[[Tensor, Tensor], BlockScore]
"""Makes a block score for the video keys and values of a call, e.g. `by_expected_error`."""


@dataclass
class LabelState:
    """One layer's labels between calls, int16 where they fit, and the step that they were made at.

    The caller sets `step` before each call; labels of another shape are never used.
    """

    step: int = 0
    made_at: int = 0
    counts: tuple[int, int] = (0, 0)
    labels: tuple[Tensor, Tensor] | None = None

    def reuse(self, query: Tensor, key: Tensor, recluster_every: int) -> CoClusters | None:
        """Return clusters with the remembered labels and fresh centroids, or None if new ones are
        due."""
        if self.labels is None or not 0 <= self.step - self.made_at < recluster_every:
            return None
        if any(
            kept.shape != tokens.shape[:3] or kept.device != tokens.device
            for kept, tokens in zip(self.labels, (query, key), strict=True)
        ):
            return None
        return from_labels(query, key, *self.labels, self.counts)

    def remember(self, clusters: CoClusters) -> None:
        """Keep the labels of new clusters."""
        sides = (clusters.query, clusters.key)
        self.counts = clusters.query.sizes.shape[2], clusters.key.sizes.shape[2]
        narrow = [
            torch.int16 if count <= torch.iinfo(torch.int16).max else torch.int32
            for count in self.counts
        ]
        query, key = (side.labels.to(dtype) for side, dtype in zip(sides, narrow, strict=True))
        self.labels, self.made_at = (query, key), self.step

    @property
    def nbytes(self) -> int:
        """Bytes that the labels take."""
        return sum(side.nbytes for side in self.labels or ())


@inference_only
def make_plan(
    query: Tensor,
    key: Tensor,
    config: SVOOConfig,
    *,
    budgets: Tensor | None = None,
    layout: VideoLayout | None = None,
    state: LabelState | None = None,
    scale: float | None = None,
    generator: torch.Generator | None = None,
    score: BlockScore = by_mass,
    watch: Watch = unwatched,
) -> BlockPlan:
    """Return SVOO's plan for query `[B, H, N, D]` and key `[B, H, M, D]`: cluster, select, add
    text and padding.

    Text and padding (see `layout`) are outside clustering and selection. Waits for no device.
    """
    if layout is not None:
        query, key = layout.video_part(query), layout.video_part(key)
    with watch("clustering"):
        clusters = state.reuse(query, key, config.recluster_every) if state else None
        if clusters is None:
            step = state.step if state else 0
            chance = generator or seeded(mix_seeds(config.seed, step))
            clusters = _cluster(query, key, config, chance)
            if state:
                state.remember(clusters)
    with watch("selection"):
        keep = select_blocks(
            clusters,
            budgets,
            mass=config.mass,
            theta=config.theta,
            scale=scale,
            unit=config.budget_unit,
            score=score,
            check=False,
        )
        return plan_from_clusters(clusters, keep, compensate=config.compensate, layout=layout)


def _cluster(
    query: Tensor, key: Tensor, config: SVOOConfig, generator: torch.Generator
) -> CoClusters:
    cluster = co_cluster if config.clustering == "co" else k_means
    return cluster(
        query,
        key,
        config.query_clusters or default_clusters(query.shape[2], config.fineness)[0],
        config.key_clusters or default_clusters(key.shape[2], config.fineness)[1],
        iterations=config.iterations,
        generator=generator,
        check=False,
    )


class SVOOMethod:
    """The paper's method over a run: a schedule, and one `LabelState` for every (stage, layer)."""

    name = "svoo"

    def __init__(
        self, config: SVOOConfig, schedule: Schedule, score: ScoreMaker | None = None
    ) -> None:
        """Start with nothing remembered; `score` ranks the blocks of a call (None: by mass)."""
        self.config = config
        self.schedule = schedule
        self.score = score
        self._states: dict[tuple[int, int, str, int], LabelState] = {}

    def plan(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan | Dense:
        """Return what the schedule says for this step and layer."""
        decision = self.schedule.at(call.step, call.layer)
        if isinstance(decision, Dense):
            return decision
        budgets = decision.budgets
        if budgets is not None:
            heads = query.shape[1]
            budgets = budgets[call.head_offset : call.head_offset + heads].to(
                query.device, non_blocking=True
            )
        branch = "" if self.config.share_branches else call.branch
        place = call.stage, call.layer, branch, call.sample
        state = self._states.setdefault(place, LabelState())
        state.step = call.step
        score: BlockScore = by_mass
        if self.score is not None:
            score = self.score(call.layout.video_part(key), call.layout.video_part(value))
        return make_plan(
            query,
            key,
            replace(self.config, mass=decision.mass),
            budgets=budgets,
            layout=call.layout,
            state=state,
            scale=call.scale,
            generator=seeded(mix_seeds(self.config.seed, call.stage, call.layer, call.step)),
            score=score,
            watch=call.watch,
        )

    def reset(self) -> None:
        """Drop all labels."""
        self._states.clear()

    @property
    def state_bytes(self) -> int:
        """Bytes of all labels."""
        return sum(state.nbytes for state in self._states.values())
