"""SparsePR's repair around any method."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from svoo.core.plan import BlockPlan
from svoo.core.repair import Probes, choose_probes, complete_rows, exact_rows, repair_output
from svoo.errors import ConfigError
from svoo.methods.base import (
    Call,
    Compensate,
    Corrected,
    Dense,
    Method,
    MethodConfig,
    Run,
    require,
    require_count,
)


@dataclass(frozen=True, kw_only=True)
class RepairedConfig(MethodConfig):
    """Another method with SparsePR's repair of its output (arXiv 2608.18484; see `core.repair`).

    One query row in each of the `probes` largest query blocks, the nearest to the block's mean,
    gets exact attention; what these rows miss is fitted (rank `rank`) and added to every row. The
    probes count as density. Everything else (warm-up, compensation, backend, ..) is that of `of`.
    """

    name: ClassVar[str] = "repaired"

    of: MethodConfig
    probes: int = 64
    rank: int = 16

    def __post_init__(self) -> None:
        """Refuse values outside their range, and take over what every method has."""
        fits = isinstance(self.of, MethodConfig) and not self.of.corrects_output
        require("of", self.of, "the config of a method that leaves its output alone", fits=fits)
        require_count("probes", self.probes, 1)
        require_count("rank", self.rank, 1)
        for shared in fields(MethodConfig):
            object.__setattr__(self, shared.name, getattr(self.of, shared.name))
        super().__post_init__()

    @property
    def corrects_output(self) -> bool:
        """It does: by the repair."""
        return True

    def start(self, run: Run) -> Method:
        """Return the method for a new video."""
        return _RepairedMethod(self, run)

    def always_sparse(self) -> Self:
        """Return these settings without any warm-up."""
        return replace(self, of=self.of.always_sparse())

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain data, with the method's name first."""
        return {**super().as_dict(), "of": self.of.as_dict()}


class _RepairedMethod:
    """A method over a run, its outputs repaired."""

    def __init__(self, config: RepairedConfig, run: Run) -> None:
        self.config = config
        self.inner = config.of.start(run)
        for name in ("heads_per_plan", "judge"):  # what a method may have
            if hasattr(self.inner, name):
                setattr(self, name, getattr(self.inner, name))

    def plan(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Corrected | Dense:
        refuse_hidden_text(self.config.compensate, call)
        decision = self.inner.plan(query, key, value, call)
        if isinstance(decision, Dense):
            return decision
        if isinstance(decision, Corrected):
            raise ConfigError(
                f"{self.config.of.name} works on its output already: it cannot be repaired"
            )
        with call.watch("selection"):
            probes = choose_probes(
                query, decision.query_blocks(), decision.query_sizes, self.config.probes
            )
        config = self.config
        tokens = query, key, value
        return repaired(tokens, decision, probes, call, config.rank)

    @property
    def state_bytes(self) -> int:
        return self.inner.state_bytes


def _has_text(call: Call) -> bool:
    return call.layout is not None and call.layout.text > 0


def refuse_hidden_text(compensate: Compensate, call: Call) -> None:
    """Refuse to repair what has terms where text lies beside the video: at a run's first call, not
    after its dense steps."""
    if compensate is not False and _has_text(call):
        raise ConfigError(
            "a repair needs to know what text adds to a row, and terms for left-out blocks hide "
            "it: use compensate=False where the model attends to text and video together"
        )


def repaired(
    tokens: tuple[Tensor, Tensor, Tensor],
    plan: BlockPlan,
    probes: Probes,
    call: Call,
    rank: int,
) -> Corrected:
    """Return a plan for query, key, value `[B, H, N, D]` of the video whose output is repaired."""
    query, key, value = tokens
    has_text = _has_text(call)
    if plan.terms is not None:
        refuse_hidden_text("mean", call)

    def correct(output: Tensor, lse: Tensor) -> Tensor:
        if not has_text:
            exact = exact_rows(query, key, value, probes.rows, scale=call.scale)
        else:
            exact = complete_rows(
                query, key, value, plan, probes.rows, output, lse, scale=call.scale
            )
        return repair_output(output, probes, exact, rank=rank)

    return Corrected(plan, correct, extra=probes.rows.shape[2] / query.shape[2])
