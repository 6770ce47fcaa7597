"""What each head may keep: from a profile, or measured during the warm-up."""

from __future__ import annotations

import torch
from torch import Tensor

from svoo.core.density import required_density
from svoo.core.random import mix_seeds, seeded
from svoo.methods.base import Call, Dense, Run
from svoo.methods.svoo.config import SVOOConfig
from svoo.methods.warm_up import count_dense_steps
from svoo.profiles.profile import PROFILE_MASS, Profile

MEASURED_ROWS = 128


class ProfileBudgets:
    """Budgets of a profile, by the noise level of each step."""

    def __init__(self, run: Run, profile: Profile) -> None:
        """Interpolate the profile to the steps of a run."""
        self._budgets = _at_steps(run, profile)  # [steps, layers, heads]

    def before(self, query: Tensor, key: Tensor, call: Call, warm: Dense | None) -> Dense | None:  # noqa: ARG002
        """Return the warm-up's verdict: there is nothing to measure."""
        return warm

    def at(self, call: Call, heads: int) -> Tensor | None:
        """Return the budgets of a call's heads, `[heads]`."""
        step = min(call.step, len(self._budgets) - 1)  # a scheduler may run on after its last step
        return self._budgets[step, call.layer, call.head_offset : call.head_offset + heads]


class MeasuredBudgets:
    """Budgets measured by the method itself: per layer, in its last dense step.

    A layer without a dense step (of an expert that comes later, or skipped by a cache during the
    warm-up) gets one when it is first called.
    """

    def __init__(self, config: SVOOConfig, run: Run) -> None:
        """Start with nothing measured."""
        self._config = config
        self._warm_up = count_dense_steps(config, run.steps)
        self._found: dict[tuple[int, int, int], Tensor] = {}
        self._measured_at: dict[tuple[int, int, int], int] = {}

    def before(self, query: Tensor, key: Tensor, call: Call, warm: Dense | None) -> Dense | None:
        """Return dense if the call must be dense; measure if it is the time to."""
        if call.layer < self._config.dense_layers:
            return warm
        layer = call.stage, call.layer, call.head_offset
        if warm is None:
            if self._measured_at.setdefault(layer, call.step) != call.step:
                return None
            warm = self._why_dense(call)
        if call.step >= self._warm_up - 1 and layer not in self._found:
            self._measured_at.setdefault(layer, call.step)
            self._found[layer] = self._measure(query, key, call)
        return warm

    def at(self, call: Call, heads: int) -> Tensor | None:
        """Return the budgets of a call's heads, `[heads]`."""
        found = self._found.get((call.stage, call.layer, call.head_offset))
        assert found is None or len(found) == heads
        return found

    def _why_dense(self, call: Call) -> Dense:
        earlier = (
            at < call.step for (stage, *_), at in self._measured_at.items() if stage == call.stage
        )
        if any(earlier):
            return Dense("skipped in the warm-up, dense to measure its budgets", planned=True)
        reason = "the first step of this expert is dense to measure its budgets"
        return Dense(reason, planned=True)

    def _measure(self, query: Tensor, key: Tensor, call: Call) -> Tensor:
        with call.watch("measuring"):
            found = required_density(
                query,
                key,
                mass=PROFILE_MASS,
                rows=min(MEASURED_ROWS, query.shape[2]),
                scale=call.scale,
                generator=seeded(mix_seeds(self._config.seed, call.stage, call.layer)),
                exact=False,
            )
            return found.value.amax(dim=0).cpu()  # the most that any sample needs


class NoBudgets:
    """None at all: mass alone decides."""

    def before(self, query: Tensor, key: Tensor, call: Call, warm: Dense | None) -> Dense | None:  # noqa: ARG002
        """Return the warm-up's verdict."""
        return warm

    def at(self, call: Call, heads: int) -> Tensor | None:  # noqa: ARG002
        """Return None."""
        return None


Budgets = ProfileBudgets | MeasuredBudgets | NoBudgets


def find_budgets(config: SVOOConfig, run: Run) -> Budgets:
    """Return where the budgets of a run come from; a tolerance needs none."""
    if config.tolerance is not None:
        return NoBudgets()
    if run.profile is not None:
        return ProfileBudgets(run, run.profile)
    if run.calibrate and count_dense_steps(config, run.steps) == 0:
        run.note("no dense step to measure budgets in: mass alone decides")
    elif run.calibrate:
        return MeasuredBudgets(config, run)
    return NoBudgets()


def _at_steps(run: Run, profile: Profile) -> Tensor:
    if run.sigmas is None:
        run.note("the scheduler has no noise levels: every step takes the profile's mean")
        mean = profile.budgets(PROFILE_MASS).mean(dim=0)
        return mean.expand(run.steps, *mean.shape)
    stages = run.stage_of_step
    if stages is None:
        stages = torch.zeros(len(run.sigmas), dtype=torch.int64)
    return profile.at_sigmas(run.sigmas, stages).budgets(PROFILE_MASS)
