"""SVOO: cluster, select, plan; labels live for a few steps and are shared by the guidance
branches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from svoo.core.far_field import heads_per_group
from svoo.core.plan import BlockPlan, plan_from_clusters
from svoo.core.selection import select_blocks
from svoo.methods.base import Call, Dense, Run
from svoo.methods.svoo.budgets import find_budgets
from svoo.methods.svoo.config import SVOOConfig
from svoo.methods.svoo.far import plan_far_call
from svoo.methods.svoo.labels import LabelState, cluster, cluster_counts
from svoo.methods.warm_up import warm_up

_LEAST_SHARE = 1 / 64  # of the tolerance, that a layer is tried with before it stays dense


class SVOOMethod:
    """The paper's method over a run: budgets, and one `LabelState` for every (stage, layer)."""

    def __init__(self, config: SVOOConfig, run: Run) -> None:
        """Start with nothing remembered."""
        self.config = config
        self.run = run
        self.budgets = find_budgets(config, run)
        self._states: dict[tuple[int, int, str, int, int], LabelState] = {}
        self._looked_at: set[tuple[int, int, float]] = set()
        self._trusted: set[tuple[int, int, float]] = set()
        self._waiting: dict[tuple[str, int, int], dict[int, Tensor]] = {}
        self._shares: dict[tuple[int, int], float] = {}  # of the tolerance; 0: the layer is dense
        self._too_dense: dict[tuple[int, int, float], Dense] = {}
        self._given_up_at: dict[tuple[int, int], float] = {}  # by layer: the step's tolerance then

    def plan(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: Call,
        state: LabelState | None = None,
    ) -> BlockPlan | Dense:
        """Return dense in the warm-up, else the blocks that tolerance, or mass and budgets, ask
        for. `state`: labels that the caller keeps, instead of the method."""
        dense = self.budgets.before(query, key, call, warm_up(self.config, self.run.steps, call))
        if dense is not None:
            return dense
        branch = ""
        if not self.config.share_branches:
            branch = call.branch if isinstance(call.branch, str) else " ".join(call.branch)
        owner = call.stage, call.layer, branch, call.sample, call.head_offset
        state = state or self._states.setdefault(owner, LabelState())
        state.step = call.step
        if self.config.tolerance is not None:
            return self._plan_far(query, key, value, call, state)
        mass, budgets = self.targets(call, query.shape[1])
        if budgets is not None:
            budgets = budgets.to(query.device, non_blocking=True)
        config = replace(self.config, mass=mass)
        return plan_call(query, key, config, call, budgets=budgets, state=state)

    def _plan_far(
        self, query: Tensor, key: Tensor, value: Tensor, call: Call, state: LabelState
    ) -> BlockPlan | Dense:
        """Return the plan with far-field terms, or dense for a layer where too much would be
        kept."""
        case = self._case(call)
        if case in self._too_dense:
            return self._too_dense[case]
        weight = None
        weights = self.run.head_weights()
        if weights is not None:
            heads = slice(call.head_offset, call.head_offset + query.shape[1])
            weight = weights[call.stage, call.layer, heads]
        plan = plan_far_call(query, key, value, self.config, call, case[2], state, weight)
        if case not in self._looked_at:  # a few times per layer and video: it waits for the device
            densities = self._of_all_heads("density", call, plan.density().mean(dim=0))
            if densities is None:
                return plan
            self._looked_at.add(case)
            density = float(densities.mean())
            if density > self.config.densest:
                reason = (
                    f"keeping {density:.0%} of the pairs would not pay (densest is "
                    f"{self.config.densest:.0%}): a larger tolerance keeps less"
                )
                self._too_dense[case] = Dense(reason)
                return self._too_dense[case]
        return plan

    def _case(self, call: Call) -> tuple[int, int, float]:
        """Return stage, layer and tolerance of a call: each is judged once per video. A layer that
        was given up at the careful start is tried again after it."""
        layer = call.stage, call.layer
        tolerance = self.config.tolerance_at(call.step, self.run.steps)
        if self._given_up_at.get(layer, tolerance) != tolerance:
            del self._given_up_at[layer], self._shares[layer], self._too_dense[(*layer, 0.0)]
        return *layer, tolerance * self._shares.get(layer, 1.0)

    def judge(self, call: Call) -> Callable[[Tensor], Dense | None] | None:
        """Return who decides by its error `[H]`, squared, whether a call has to be dense after
        all; None: nobody. A layer is judged at each tolerance until one call was right: what is
        small for the tolerance may be much of a small output."""
        if self.config.tolerance is None or self._case(call) in self._trusted:
            return None
        return partial(self._judge, call)

    def _judge(self, call: Call, squared_error: Tensor) -> Dense | None:
        """Return dense where the error is too large: the layer goes on with half the tolerance, or
        dense if it has come to the least share."""
        errors = self._of_all_heads("error", call, squared_error)
        if errors is None:
            return None
        case = self._case(call)
        error = float(errors.mean().sqrt())  # a few times per layer and video: it waits
        if error <= self.config.worst_error:
            self._trusted.add(case)
            return None
        wrong = f"outputs would be {error:.0%} off (worst_error is {self.config.worst_error:.0%})"
        layer, share = case[:2], self._shares.get(case[:2], 1.0)
        if share > _LEAST_SHARE:
            self._shares[layer] = share / 2
            return Dense(f"{wrong}: from here on with {share / 2:g} of the tolerance")
        self._shares[layer] = 0.0  # the same case at every step
        self._given_up_at[layer] = self.config.tolerance_at(call.step, self.run.steps)
        self._too_dense[self._case(call)] = Dense(
            f"{wrong} with {share:g} of the tolerance: a smaller one keeps more"
        )
        return self._too_dense[self._case(call)]

    def _of_all_heads(self, what: str, call: Call, values: Tensor) -> Tensor | None:
        """Return the values of all heads of a layer, from all groups and devices, so that no
        decision depends on how heads are grouped; None while a group is missing. `values` `[h]`
        are those of the group that is shown."""
        waiting = self._waiting.setdefault((what, call.stage, call.layer), {})
        waiting[call.head_offset] = values
        if call.more_heads:
            return None
        del self._waiting[what, call.stage, call.layer]
        return call.heads.gather(torch.cat([waiting[first] for first in sorted(waiting)]))

    def heads_per_plan(self, query: Tensor, key: Tensor) -> int:
        """Return how many heads are planned at a time: far-field terms take memory."""
        if self.config.compensate != "far":
            return query.shape[1]
        counts = cluster_counts(self.config, query, key)
        batch, _, _, size = query.shape
        return heads_per_group(batch, *counts, size, query.element_size())

    def targets(self, call: Call, heads: int) -> tuple[float, Tensor | None]:
        """Return the mass to cover and the budgets `[heads]` of a call, on their way from dense
        while the ramp lasts."""
        config = self.config
        assert config.mass is not None  # else the tolerance decides
        share = config.dense_share(call.step, self.run.steps)
        mass = config.mass + share * (1 - config.mass)
        budgets = self.budgets.at(call, heads)
        if budgets is None:
            return mass, None
        budgets = budgets.clamp(*config.budget_range)
        return mass, budgets + share * (1 - budgets)

    @property
    def state_bytes(self) -> int:
        """Bytes of all labels."""
        return sum(state.nbytes for state in self._states.values())


def plan_call(
    query: Tensor,
    key: Tensor,
    config: SVOOConfig,
    call: Call,
    *,
    budgets: Tensor | None = None,
    state: LabelState | None = None,
) -> BlockPlan:
    """Cluster and select: SVOO's plan for the video tokens query `[B, H, N, D]` and key `[B, H, M,
    D]`. Budgets are `[H]` or `[B, H]`. Waits for no device."""
    assert config.mass is not None  # else `plan_far_call` plans
    with call.watch("clustering"):
        videos = call.videos(len(query)) if config.share_branches else list(range(len(query)))
        clusters = state.reuse(query, key, config.recluster_every, videos) if state else None
        if clusters is None:
            state = state or LabelState(step=call.step)
            firsts = [videos.index(video) for video in range(max(videos) + 1)]
            shown = (query, key) if len(firsts) == len(query) else (query[firsts], key[firsts])
            counts = cluster_counts(config, query, key)
            call.count("clustering", config.iterations * sum(counts) / key.shape[2])
            clusters = state.remember(cluster(*shown, config, call.chance(config.seed)))
            if len(firsts) < len(query):
                clusters = state.reuse(query, key, config.recluster_every, videos)
                assert clusters is not None
    with call.watch("selection"):
        keep = select_blocks(
            clusters,
            budgets,
            mass=config.mass,
            theta=config.theta,
            scale=call.scale,
            unit=config.budget_unit,
            check=False,
        )
        return plan_from_clusters(clusters, keep, compensate=False)
