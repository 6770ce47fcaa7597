"""Dense against sparse attention on this machine: a block of text to paste into an issue."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo.app.kernel_checks import LIMIT, check_kernels
from svoo.backends import attend
from svoo.core.plan import BlockPlan
from svoo.core.random import seeded
from svoo.methods.svoo.config import SVOOConfig
from svoo.session.one_call import make_plan

TOKENS = {"cuda": (8_192, 32_760, 75_600), "cpu": (1_024, 2_048, 4_096)}
_GROUPS = 64  # points that synthetic tokens gather around
_PARTS = 32  # of the queries, one of which is compared
_TOLERANCE = LIMIT


@dataclass(frozen=True)
class Row:
    """One size and mode: milliseconds of dense attention, planning and sparse attention; the
    density of the plan; the largest difference from dense where everything is kept, over the
    largest number, and that of each kernel from its plain form (checked once for a size)."""

    tokens: int
    mode: str
    backend: str
    density: float
    dense: float
    planning: float
    sparse: float
    difference: float
    kernels: Mapping[str, float]

    @property
    def wrong(self) -> list[str]:
        """What is wrong: a plan that keeps everything is not dense attention, or a kernel is not
        its plain form."""
        found = {"everything kept": self.difference, **self.kernels}
        return [f"{name} by {apart:.3f}" for name, apart in found.items() if apart > _TOLERANCE]


def measure(
    device: torch.device,
    *,
    tokens: Sequence[int] | None = None,
    heads: int | None = None,
    size: int = 128,
    budget: float = 0.2,
) -> Iterator[Row]:
    """Time one layer of random clustered tokens at several sizes in paper mode, at a mass of
    `budget`, and in default mode, after a check of the result and of every kernel: one row after
    another."""
    fast = device.type == "cuda"
    dtype = torch.bfloat16 if fast else torch.float32
    heads = heads or (10 if fast else 2)
    paper = replace(SVOOConfig.paper().always_sparse(), mass=budget)
    for count in tokens or TOKENS["cuda" if fast else "cpu"]:
        sides = clustered_tokens(count, heads, size, dtype, device)
        first = _measure(sides, "paper", paper)
        yield first
        yield _measure(sides, "default", SVOOConfig().always_sparse(), dense=first.dense)


def _measure(
    tokens: tuple[Tensor, Tensor, Tensor],
    mode: str,
    config: SVOOConfig,
    dense: float | None = None,
) -> Row:
    """Check and time a mode. Given the time of dense attention, the kernels were checked too."""
    query, key, value = tokens

    def plan() -> BlockPlan:
        return make_plan(query, key, value, config, generator=seeded(), check=False)

    made = plan()
    everything = replace(made, keep=torch.ones_like(made.keep), terms=None, check=False)
    exact = scaled_dot_product_attention(query, key, value)
    got, _, backend = attend(query, key, value, everything)
    rows = slice(0, None, _PARTS)
    apart = (got[:, :, rows].float() - exact[:, :, rows].float()).abs().amax()
    kernels = check_kernels(tokens, made) if dense is None else {}
    if dense is None:
        dense = milliseconds(lambda: scaled_dot_product_attention(query, key, value), query.device)
    return Row(
        query.shape[2],
        mode,
        backend,
        float(made.density().mean()),
        dense,
        milliseconds(plan, query.device),
        milliseconds(lambda: attend(query, key, value, made), query.device),
        float(apart / exact[:, :, rows].float().abs().amax()),
        kernels,
    )


def clustered_tokens(
    count: int, heads: int, size: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value `[1, heads, count, size]` that gather around some points."""
    generator = seeded()
    points = torch.randn(1, heads, _GROUPS, size, generator=generator)
    which = torch.randint(_GROUPS, (1, heads, count), generator=generator)
    centres = points.gather(2, which.unsqueeze(-1).expand(-1, -1, -1, size))
    query, key, value = (
        (factor * centres + torch.randn(centres.shape, generator=generator)).to(device, dtype)
        for factor in (1.5, 1.5, 1.0)
    )
    return query, key, value


def milliseconds(call: Callable[[], object], device: torch.device, runs: int = 3) -> float:
    """Return the least of a few runs, after one that warms up."""
    best = math.inf
    for run in range(runs + 1):
        wait_for(device)
        start = time.perf_counter()
        call()
        wait_for(device)
        if run:
            best = min(best, time.perf_counter() - start)
    return 1e3 * best


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all that it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def as_text(rows: Sequence[Row], device: torch.device) -> str:
    """Return the rows with what they were measured on, as a block to paste."""
    machine = platform.processor() or platform.machine()
    if device.type == "cuda":
        machine = torch.cuda.get_device_name(device)
    lines = [
        f"svoo bench: {machine}, torch {torch.__version__}, Python {platform.python_version()}",
        "tokens mode    backend    density  dense ms  plan ms  sparse ms  speed-up  result",
    ]
    for row in rows:
        speed = row.dense / (row.planning + row.sparse)
        verdict = f"WRONG: {', '.join(row.wrong)}" if row.wrong else "right"
        lines.append(
            f"{row.tokens:6d} {row.mode:7s} {row.backend:10s} {row.density:7.3f}  "
            f"{row.dense:8.2f} {row.planning:8.2f} {row.sparse:10.2f} {speed:8.2f}x  {verdict}"
        )
    names = "; ".join(rows[0].kernels) if rows else "none"
    lines.append(f"checked against torch at every size: everything kept; {names}")
    return "\n".join(lines)
