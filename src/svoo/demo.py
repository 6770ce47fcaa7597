"""The demo on synthetic tokens: dense attention against the paper's mode and ours, in one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo.attention import sparse_attention
from svoo.checks import seeded
from svoo.config import SVOOConfig
from svoo.density import required_density
from svoo.methods.svoo import make_plan
from svoo.quality import assess
from svoo.synthetic import clustered_tokens


@dataclass(frozen=True)
class DemoRow:
    """One line of the demo's table."""

    name: str
    seconds: float
    density: float
    recall: float
    error: float


def measure(tokens: int, repeats: int = 3) -> list[DemoRow]:
    """Return dense attention, paper mode and default mode on the same synthetic tokens."""
    query, key, value = clustered_tokens(1, 2, tokens, 64, generator=seeded(0))
    budgets = required_density(query, key, mass=0.95, rows=min(256, tokens)).value
    seconds = _time(lambda: scaled_dot_product_attention(query, key, value), repeats)
    rows = [DemoRow("dense", seconds, 1.0, 1.0, 0.0)]
    for name, config in (("paper", SVOOConfig.paper()), ("default", SVOOConfig())):

        def call(config: SVOOConfig = config) -> Tensor:
            return sparse_attention(query, key, value, config, budgets=budgets, check=False)

        plan = make_plan(query, key, config, budgets=budgets)
        quality = assess(query, key, value, plan, rows=min(512, tokens))
        figures = (quality.density, quality.recall, quality.error)
        rows.append(DemoRow(name, _time(call, repeats), *(float(x.mean()) for x in figures)))
    return rows


def _time(call: Callable[[], Tensor], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)
