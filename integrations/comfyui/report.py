"""The text of the REPORT output: what a sampling run did, and what it cost."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from svoo.session.session import ERROR_ROWS
from svoo.session.stats import RunStats

if TYPE_CHECKING:
    from .sparse import SparseModel

PHASES = {
    "clustering": "clustering",
    "selection": "choosing blocks",
    "attention": "sparse attention",
    "dense": "dense attention",
}


def write_report(sparse: SparseModel) -> str:
    """Return the report of the last sampling run of a model, or of the present one."""
    stats = sparse.session.stats() if sparse.session is not None else sparse.stats
    lines = [f"SVOO sparse attention: {sparse.settings.describe()}"]
    if stats is not None and sparse.grid is not None:
        frames, height, width = sparse.grid
        tokens = frames * height * width
        lines[0] += f", {stats.steps} steps, {tokens:,} video tokens"
        lines[0] += f" ({frames} x {height} x {width})"
        lines += _describe_calls(stats)
        lines += _describe_errors(stats)
        lines += [f"note: {note}" for note in stats.notes]
    lines += [
        f"{count} forwards of the model were dense: {reason}"
        for reason, count in sparse.refusals.items()
    ]
    if len(lines) == 1:
        lines.append("nothing was sampled with this model yet: connect the latent of its sampler")
    return "\n".join(lines)


def _describe_calls(stats: RunStats) -> list[str]:
    reasons: Counter[str] = Counter()
    backends: Counter[str] = Counter()
    for layer in stats.layers:
        reasons.update(layer.dense_reasons)
        backends.update(layer.backends)
    lines = [f"attention calls: {stats.sparse_calls} sparse, {stats.dense_calls} dense"]
    lines += [f"  {count} dense: {reason}" for reason, count in reasons.items()]
    if stats.density is not None:
        density = f"density of the sparse calls: {stats.density:.3f} of all query-key pairs"
        besides = sum(stats.work.values())
        lines.append(density + (f", and work worth {besides:.3f} besides" if besides else ""))
        lines.append(f"backend: {', '.join(backends)}")
    spent = [
        f"{name} {stats.seconds[phase]:.1f} s"
        for phase, name in PHASES.items()
        if stats.seconds[phase] > 0
    ]
    return [*lines, f"time in attention: {', '.join(spent) or 'none'}"]


def _describe_errors(stats: RunStats) -> list[str]:
    errors = {layer.layer: layer.error for layer in stats.layers if layer.error is not None}
    if stats.error is None or not errors:
        return []
    worst = max(errors, key=lambda layer: errors[layer])
    return [
        f"error of the attention output: {stats.error:.3f} on average, {errors[worst]:.3f} in "
        f"block {worst} (relative, against exact attention, on {ERROR_ROWS} query rows per call)"
    ]
