"""How much of attention methods keep, what they compute besides, and how far their outputs are
from dense ones, on the very same tokens: those of a dense video, so that no method is judged by
the errors of its earlier steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from statistics import mean
from typing import Any

from looking import LookConfig, look_at_video, plan_call
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import svoo
from svoo.catalogue import find_model
from svoo.core.quality import output_error, recall
from svoo.core.random import seeded
from svoo.core.terms import FarTerms, MeanTerms
from svoo.methods.warm_up import warm_up
from svoo.session.finish import correct_video, finish_plan

_COUNT = find_model("mini").layers
LAYERS = tuple(dict.fromkeys(_COUNT * part // 6 for part in (1, 3, 5)))  # early, middle, late
ROWS = 256  # that recall is measured on, where there are as many

Figures = dict[str, float]


class Fidelity:
    """Runs every method on the calls that it is shown, and notes figures of each sparse call."""

    def __init__(self, tried: Mapping[str, svoo.MethodConfig]) -> None:
        """Begin with nothing seen."""
        self.tried = tried
        self.seen: dict[str, list[Figures]] = {name: [] for name in tried}
        self.failed: dict[str, str] = {}  # what was raised, by method; it is not asked again
        self._methods: dict[str, svoo.Method] = {}

    def look(
        self, run: svoo.Run, call: svoo.Call, query: Tensor, key: Tensor, value: Tensor
    ) -> None:
        """Run one call by all methods; the warm-up does not count."""
        tokens = query, key, value
        exact: Tensor | None = None
        for name, config in self.tried.items():
            if name in self.failed:
                continue
            try:
                figures, exact = self._run(name, config, run, call, tokens, exact)
            except Exception as error:  # noqa: BLE001 (the others shall be measured)
                self.failed[name] = f"{type(error).__name__}: {error}"
                self.seen[name] = []
                continue
            if figures is not None:
                self.seen[name].append(figures)

    def _run(
        self,
        name: str,
        config: svoo.MethodConfig,
        run: svoo.Run,
        call: svoo.Call,
        tokens: tuple[Tensor, Tensor, Tensor],
        exact: Tensor | None,
    ) -> tuple[Figures | None, Tensor | None]:
        """Return the figures of a call, None in the warm-up, and the exact output once it is
        known. Another call that the method leaves dense keeps all, and costs all."""
        if name not in self._methods:
            self._methods[name] = config.start(run)
        counted: defaultdict[str, float] = defaultdict(float)
        decision = plan_call(self._methods[name], call, *tokens, counted=counted)
        if isinstance(decision, svoo.Dense):
            warm = warm_up(config, run.steps, call) is not None
            return None if warm else {"recall": 1.0, "error": 0.0, "work": 1.0}, exact
        if exact is None:
            exact = scaled_dot_product_attention(*tokens, scale=call.scale)
        figures = run_decision(tokens, call, config, decision, exact)
        figures["work"] += sum(counted.values())
        return figures, exact

    def figures(self) -> dict[str, Figures]:
        """Return the means over the calls of each method; nothing where there was none."""
        return {
            name: {figure: mean(call[figure] for call in calls) for figure in calls[0]}
            if calls
            else {}
            for name, calls in self.seen.items()
        }


def run_decision(
    tokens: tuple[Tensor, Tensor, Tensor],
    call: svoo.Call,
    config: svoo.MethodConfig,
    decision: svoo.BlockPlan | svoo.Corrected,
    exact: Tensor,
) -> Figures:
    """Return recall, relative error of the output, and work (kept pairs and terms) of one call."""
    corrected = decision if isinstance(decision, svoo.Corrected) else None
    plan = decision if isinstance(decision, svoo.BlockPlan) else decision.plan
    plan = finish_plan(plan, tokens, config, call.layout, call.scale)
    output, lse = svoo.run_plan(*tokens, plan, scale=call.scale, return_lse=True)
    density = float(plan.density().mean())
    if corrected is not None:
        assert lse is not None  # asked for
        output = correct_video(output, lse, corrected, call.layout)
        density += corrected.extra
    query, key, _ = tokens
    rows = min(ROWS, query.shape[2])
    kept = recall(query, key, plan, rows=rows, scale=call.scale, generator=seeded(call.step))
    return {
        "recall": float(kept.mean()),
        "error": float(output_error(output, exact).mean()),
        "work": density + term_share(plan),
    }


def term_share(plan: svoo.BlockPlan) -> float:
    """Return the terms that stand for left-out blocks, as a share of all pairs."""
    if plan.terms is None:
        return 0.0
    if isinstance(plan.terms, MeanTerms):
        filled = plan.terms.compensate & (plan.key_sizes > 0)
        count = (~plan.keep & filled.unsqueeze(2)).sum(dim=-1)
    else:
        assert isinstance(plan.terms, FarTerms)
        count = plan.terms.enters(plan.key_sizes).sum(dim=-1)
        if plan.terms.groups is not None:
            count = count + plan.terms.groups.bias.isfinite().sum(dim=-1)
    terms = (count * plan.query_sizes).sum(dim=-1).double().mean()
    return float(terms) / (plan.query_tokens * plan.key_tokens)


def measure_fidelity(
    pipe: Any,  # noqa: ANN401 (any pipeline class)
    tried: Mapping[str, svoo.MethodConfig],
    sizes: Mapping[str, int],
    prompt: str,
    on_call: Callable[[], None],
) -> dict[str, Figures]:
    """Return recall, output error and work of every method over the first branch of one dense
    video."""
    fidelity = Fidelity(tried)

    def look(run: svoo.Run, call: svoo.Call, query: Tensor, key: Tensor, value: Tensor) -> None:
        fidelity.look(run, call, query, key, value)
        on_call()

    look_at_video(pipe, LookConfig(look=look, layers=LAYERS), sizes, prompt=prompt)
    for name, error in fidelity.failed.items():
        print(f"{name}: recall and error not measured, {error}")
    return {
        name: found for name, found in fidelity.figures().items() if name not in fidelity.failed
    }
