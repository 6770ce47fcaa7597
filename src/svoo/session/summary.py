"""The statistics of a run as a text table."""

from __future__ import annotations

from collections import Counter
from textwrap import wrap

from svoo.methods.base import MethodConfig
from svoo.methods.svoo.config import SVOOConfig
from svoo.profiles.profile import Profile
from svoo.session.stats import PHASES, LayerStats, RunStats

_WIDTH = 80


def summarise(stats: RunStats) -> str:
    """Return a table with one row per layer, then backends, reasons for dense calls, notes, and
    where budgets come from; lines have at most 80 columns, unless a single word is longer."""
    lines = [
        f"method {stats.method}, {stats.calls} calls of the pipeline, the last with "
        f"{stats.steps} steps",
        "",
        "stage layer sparse  dense density  recall  cluster  select  attend   dense s",
    ]
    reasons: Counter[str] = Counter()
    backends: Counter[str] = Counter()
    for row in stats.layers:
        times = "".join(f"{row.seconds[phase]:8.2f}" for phase in PHASES[:4])
        lines.append(
            f"{row.stage:5d} {row.layer:5d} {row.sparse_calls:6d} {row.dense_calls:6d} "
            f"{_figure(row.density)} {_figure(row.recall)} {times}"
        )
        reasons.update(row.dense_reasons)
        backends.update(row.backends)
    lines.append("")
    why = "auto: the first that can run" if stats.backend == "auto" else "asked for by name"
    notes = [f"{count} calls on the {name} backend ({why})" for name, count in backends.items()]
    notes += [f"{count} dense calls: {reason}" for reason, count in reasons.items()]
    notes += [f"note: {note}" for note in stats.notes]
    aside = stats.seconds["measuring"] + stats.seconds["recall"]
    notes.append(
        f"density over sparse calls {_figure(stats.density).strip()}; measuring took "
        f"{aside:.2f} s; state {stats.state_bytes:,} bytes"
    )
    if stats.error is not None:
        worst = max((row for row in stats.layers if row.error), key=_error, default=None)
        where = "" if worst is None else f", most in layer {worst.layer} ({_error(worst):.1%})"
        notes.append(
            f"error of attention outputs {stats.error:.1%}{where}; measured on "
            "a few random queries of each sparse call"
        )
    notes.append(f"budgets: {stats.budgets}")
    for note in notes:
        lines += wrap(note, _WIDTH, subsequent_indent="  ", break_long_words=False)
    return "\n".join(lines)


def _error(row: LayerStats) -> float:
    return row.error or 0.0


def _figure(value: float | None) -> str:
    return "      -" if value is None else f"{value:7.3f}"


def describe_budgets(config: MethodConfig, profile: Profile | None, *, calibrate: bool) -> str:
    """Return where budgets come from, in words."""
    facts = ""
    if profile is not None:
        said = " ".join(f"{key}={fact}" for key, fact in profile.provenance.items())
        facts = f"a profile ({said or 'no provenance'})"
    if not isinstance(config, SVOOConfig):
        return f"left to {config.name}{facts and f', which was given {facts}'}"
    if config.tolerance is not None:
        return f"none: the tolerance {config.tolerance:g} decides"
    if facts:
        return f"from {facts}"
    measured = calibrate and config.dense_steps > 0
    return "measured in the warm-up" if measured else "none: mass alone decides"
