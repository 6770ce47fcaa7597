"""The statistics of a run in words: no line is wider than a plain terminal, provenance comes
last."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable
from typing import Any

WIDTH = 80
_TIMES = ("clustering", "selection", "attention", "dense")
_HEADER = "stage layer  sparse dense  density recall    cluster   select   attend    dense"


def summarise(data: dict[str, Any]) -> str:
    """Return `Handle.stats()` as a text table: a row per layer with its seconds, then the reasons,
    then what it cost, then where its budgets are from."""
    lines = [
        f"method {data['method']}, {data['calls']} calls of the pipeline, last with "
        f"{data['steps']} steps; seconds per layer:",
        "",
        _HEADER,
        *(_row(row) for row in data["layers"]),
        "",
    ]
    reasons: Counter[str] = Counter()
    backends: Counter[str] = Counter()
    for row in data["layers"]:
        reasons.update(row["dense_reasons"])
        backends.update(row["backends"])
    why = "auto: the first that can run" if data["backend"] == "auto" else "asked for by name"
    words = [f"{count} calls on the {name} backend ({why})" for name, count in backends.items()]
    words += [f"{count} dense calls: {reason}" for reason, count in reasons.items()]
    words += [f"note: {note}" for note in data["notes"]]
    aside = data["seconds"]["measuring"] + data["seconds"]["recall"]
    words += [
        f"density over sparse calls {_figure(data['density']).strip()}; measuring took "
        f"{aside:.3f} s; state {data['state_bytes']:,} bytes",
        f"budgets: {data['budgets']}",
    ]
    return "\n".join([*lines, *_wrapped(words)])


def _row(row: dict[str, Any]) -> str:
    times = "".join(f" {row['seconds'][name]:8.2f}" for name in _TIMES)
    return (
        f"{row['stage']:5d} {row['layer']:5d} {row['sparse_calls']:7d} {row['dense_calls']:5d}  "
        f"{_figure(row['density'])} {_figure(row['recall'])[1:]}  {times}"
    )


def _wrapped(words: Iterable[str]) -> list[str]:
    return [
        part
        for text in words
        for part in textwrap.wrap(
            text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    ]


def _figure(value: float | None) -> str:
    return "      -" if value is None else f"{value:7.3f}"
