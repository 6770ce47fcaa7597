"""What studies of whole videos share: jobs, rows, and tables with best and second best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from svoo.methods import available_methods
from svoo.studies.base import Cell, Job, Table, Verdict
from svoo.studies.lab import BUSY, Lab, Task
from svoo.studies.results import Results
from svoo.studies.runs import RunRow, Setting
from svoo.studies.scale import Size
from svoo.studies.statistics import LEAST_PROMPTS, Interval, best_two, interval, paired

DENSE = Setting("dense", None)
_TRAINED = frozenset(row.name for row in available_methods() if row.trained)
_APART = 0.005  # densities that differ by less are shown as one
_AS_DENSE = 0.99  # a row of a higher density is dense in content, and is not ranked
_LEFT_DENSE = (
    "Where a method itself left calls dense after the warm-up, the density of all calls after the "
    "warm-up stands beside that of its sparse calls."
)


@dataclass(frozen=True)
class Entry:
    """One run as a study names it: the table it belongs to, and its row there."""

    group: str
    setting: str
    run: RunRow


@dataclass(frozen=True)
class Column:
    """A column of a table: the figure of a run, how it is written, which end is better (None:
    neither), whether it is a time."""

    name: str
    figure: Callable[[RunRow], float | None]
    text: str
    higher: bool | None = None
    timed: bool = False


def speed_up(run: RunRow) -> float:
    """Return dense time over sparse time of the denoising loop."""
    return run.dense_seconds / run.seconds


def psnr(run: RunRow) -> float | None:
    """Return the PSNR; of equal videos it is infinite, of the dense one there is none."""
    return math.inf if run.psnr is None and run.ssim is not None else run.psnr


def work(run: RunRow) -> float:
    """Return the kept pairs and all else that a method computes, as a share of all pairs."""
    return run.density + run.work


PSNR = Column("PSNR, dB", psnr, "{:.2f}", higher=True)
SPEED_UP = Column("speed-up", speed_up, "{:.2f}x", higher=True, timed=True)
DENSITY = Column("density", lambda run: run.density, "{:.3f}")
_CALLS = Column(
    "attention call", lambda run: run.dense_attention / run.attention, "{:.2f}x", timed=True
)
_OF_ALL_CALLS = Column("density of all calls", lambda run: run.density_of_all, "{:.3f}")
COLUMNS = (
    PSNR,
    Column("SSIM", lambda run: run.ssim, "{:.4f}", higher=True),
    Column("LPIPS", lambda run: run.lpips, "{:.4f}", higher=False),
    DENSITY,
    Column("work", work, "{:.3f}"),
    Column("loop", lambda run: run.seconds, "{:.2f} s", timed=True),
    SPEED_UP,
    _CALLS,
    Column("planning", lambda run: run.planning / run.seconds, "{:.0%} of loop", timed=True),
)


def run_jobs(
    lab: Lab,
    group: str,
    settings: Sequence[Setting],
    size: Size,
    *,
    task: Task = "text",
    score: bool = False,
    dense: bool = True,
    prompts: int | None = None,
    turn: int,
) -> list[Job]:
    """Return jobs for every input and setting, `dense` first; `score`: also without reference."""
    jobs = []
    for entry in lab.inputs[:prompts]:
        for setting in (*((DENSE,) if dense else ()), *settings):

            def make(
                setting: Setting = setting, entry: Mapping[str, Any] = entry
            ) -> dict[str, Any]:
                key = lab.run(setting, entry, size, task, score=score)
                return {"group": group, "setting": setting.name, "run": key}

            run = lab.run_key(setting, entry, size, task)
            job = f"{group} | {setting.name} | {entry['prompt']} | {run}"
            # A sparse run takes about half of a dense one, of which every second has one.
            cost = lab.scale.cost(size)
            jobs.append(Job(job, make, cost, entry["prompt"], turn, scored=score))
    return jobs


def read_entries(results: Results, study: str) -> list[Entry]:
    """Return the runs of a study; of two with the same name and prompt the later one. If the
    settings of a name have changed, runs with others than the latest are left out."""
    found: dict[tuple[str, str, str], Entry] = {}
    settings: dict[tuple[str, str], dict[str, Any]] = {}
    runs = results.of_kind("run")
    for data in results.of_kind(study).values():
        if data.get("run") in runs:
            entry = Entry(data["group"], data["setting"], RunRow(**runs[data["run"]]))
            found[entry.group, entry.setting, entry.run.prompt] = entry
            settings[entry.group, entry.setting] = entry.run.config
    return [
        entry
        for entry in found.values()
        if entry.run.config == settings[entry.group, entry.setting]
    ]


def where(entries: Sequence[Entry]) -> str:
    """Return the size of the videos of a table in tokens."""
    tokens = sorted({entry.run.tokens for entry in entries if entry.run.tokens})
    return " and ".join(f"{count:,} tokens" for count in tokens) or "the model's own size"


def groups_of(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Return the entries of each table, in the order of their first rows."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.group, []).append(entry)
    return groups


def by_prompt(entries: Sequence[Entry], column: Column) -> dict[str, dict[str, float]]:
    """Return a figure by setting and prompt; of times those that count (`well_timed`)."""
    if column.timed:
        entries = well_timed(entries)
    figures: dict[str, dict[str, float]] = {}
    for entry in entries:
        value = column.figure(entry.run)
        if value is not None:
            figures.setdefault(entry.setting, {})[entry.run.prompt] = value
    return figures


def well_timed(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries that were timed on an idle machine, of the machine that made most."""
    idle = [e for e in entries if e.run.timed and (e.run.others or 0.0) <= BUSY]
    machines = Counter(entry.run.machine for entry in idle)
    most = machines.most_common(1)[0][0] if machines else ""
    return [entry for entry in idle if entry.run.machine == most]


def difference(
    entries: Sequence[Entry], first: str, second: str, column: Column
) -> Interval | None:
    """Return first - second of a figure, paired by prompt."""
    figures = by_prompt(entries, column)
    return paired(figures.get(first, {}), figures.get(second, {}))


def make_table(
    title: str,
    entries: Sequence[Entry],
    columns: Sequence[Column] = COLUMNS,
    note: str = "",
    *,
    minus: str | None = None,
) -> Table:
    """Return a table of medians with their intervals; best and second best are marked. `minus`:
    a setting from which all others differ by so many decibels, paired by prompt."""
    settings = list(dict.fromkeys(entry.setting for entry in entries))
    of_all = _of_all_calls(entries)
    as_dense = dense_in_content(entries)
    prompts = {s: len({e.run.prompt for e in entries if e.setting == s}) for s in settings}
    most = max(prompts.values())
    cells = {
        name: [Cell(name if prompts[name] == most else f"{name} ({_prompts(prompts[name])})")]
        for name in settings
    }
    shown, notes = [], [f"{_prompts(most)}.", note]
    if minus is not None and minus in settings:
        shown.append(f"minus {minus}, dB")
        for name in settings:
            found = None if name == minus else difference(entries, name, minus, PSNR)
            cells[name].append(Cell("" if found is None else say_difference(found, "")))
    for column in columns:
        figures = by_prompt(entries, column)
        if not any(figures.values()):
            continue
        shown.append(column.name + _arrow(column.higher))
        ranks = _ranks(figures, column.higher, as_dense)
        for name in settings:
            found = interval(list(figures.get(name, {}).values()))
            text = "" if found is None else say_interval(found, column.text)
            if column is DENSITY and found and abs(of_all[name] - found.median) > _APART:
                text += f"; {of_all[name]:.3f} of all calls"
                notes.append(_LEFT_DENSE)
            if column.timed and found and found.count < prompts[name]:
                text += f"; {_prompts(found.count)}"
            cells[name].append(Cell(text, ranks.get(name, 0)))
    if as_dense:
        names = ", ".join(as_dense)
        notes.append(f"Dense in content (density over {_AS_DENSE}), so not ranked: {names}.")
        calls = by_prompt([e for e in entries if e.setting in as_dense], _CALLS)
        faster = [figure for values in calls.values() for figure in values.values()]
        if faster:
            notes.append(
                f"With all pairs kept a call is {np.median(faster):.2f}x as fast as dense "
                "attention: so much of every speed-up here is the kernel's."
            )
    methods = dict.fromkeys(name.partition(", ")[0] for name in settings)
    if untrained := [name for name in methods if name in _TRAINED]:
        notes.append(f"Trained by their authors, not here: {', '.join(untrained)}.")
    notes = list(filter(None, dict.fromkeys((*notes, say_times(entries)))))
    return Table(title, ["", *shown], [cells[name] for name in settings], " ".join(notes))


def _prompts(count: int) -> str:
    return f"{count} prompt{'s' if count > 1 else ''}"


def dense_in_content(entries: Sequence[Entry]) -> list[str]:
    """Return the settings that leave (nearly) nothing out, and are not called dense."""
    density = _of_all_calls(entries)
    return [name for name, of_all in density.items() if name != DENSE.name and of_all > _AS_DENSE]


def _of_all_calls(entries: Sequence[Entry]) -> dict[str, float]:
    """Return the density of all calls after the warm-up by setting, medians over prompts."""
    figures = by_prompt(entries, _OF_ALL_CALLS)
    return {name: float(np.median(list(values.values()))) for name, values in figures.items()}


def say_times(entries: Sequence[Entry]) -> str:
    """Return where the times of a table are from, and which are left out."""
    timed = well_timed(entries)
    if not entries:
        return ""
    left = _why_untimed(entries, timed)
    if not timed:
        return f"No times: {left}."
    text = f"Times are of one kind of machine ({timed[0].run.machine})"
    if any(entry.run.others is not None for entry in timed):
        busy = max(entry.run.others or 0.0 for entry in timed)
        text += f"; other processes took at most {busy:.0%} of it meanwhile"
    if left:
        text += f"; of {len(entries)} runs these have no time: {left}"
    commits = sorted({entry.run.commit for entry in entries if entry.run.commit})
    if len(commits) > 1:
        text += f". The rows were made by several commits ({', '.join(commits)})"
    return f"{text}."


def _why_untimed(entries: Sequence[Entry], timed: Sequence[Entry]) -> str:
    """Return how many runs have no time that counts, by reason."""
    counts: Counter[str] = Counter()
    for entry in entries:
        if not entry.run.timed:
            counts["made for their quality alone"] += 1
        elif (entry.run.others or 0.0) > BUSY:
            counts["on a busy machine (`--retime` times them again)"] += 1
        elif timed and entry.run.machine != timed[0].run.machine:
            counts["on another kind of machine"] += 1
    return ", ".join(f"{count} {why}" for why, count in counts.items())


def _arrow(higher: bool | None) -> str:  # noqa: FBT001 (three values)
    return "" if higher is None else " ↑" if higher else " ↓"


def _ranks(
    figures: Mapping[str, Mapping[str, float]],
    higher: bool | None,  # noqa: FBT001 (three values)
    as_dense: Sequence[str],
) -> dict[str, Literal[0, 1, 2]]:
    """Return the marks of a column. Where all rows share enough prompts, these alone count; where
    more than half of the rows are as good as the best, nobody is marked."""
    if higher is None:
        return {}
    left = (DENSE.name, *as_dense)
    sparse = {
        name: values
        for name, values in figures.items()
        if name not in left and len(values) >= LEAST_PROMPTS  # fewer rank nobody
    }
    shared = set.intersection(*map(set, sparse.values())) if sparse else set()
    if len(shared) >= LEAST_PROMPTS:
        sparse = {name: {p: values[p] for p in shared} for name, values in sparse.items()}
    best, second = best_two(sparse, higher_is_better=higher)
    if len(best) > max(1, len(sparse) / 2):
        return {}
    return {**dict.fromkeys(second, 2), **dict.fromkeys(best, 1)}


def say_interval(found: Interval, text: str) -> str:
    """Return a median with its interval in words; without one where it says nothing."""
    middle = "equal" if math.isinf(found.median) else text.format(found.median)
    if found.count < 2 or math.isinf(found.low):
        return middle
    ends = (
        "equal" if math.isinf(end) else text.format(end).rstrip("x sof%lp").strip()
        for end in (found.low, found.high)
    )
    low, high = ends
    if low == high and middle.startswith(low):
        return middle
    return f"{middle} ({low} to {high})"


def say_difference(found: Interval, unit: str, digits: int = 2) -> str:
    """Return a paired difference in words."""
    ends = found.median, found.low, found.high
    middle, low, high = ("equal" if math.isinf(x) else f"{x:+.{digits}f}" for x in ends)
    if found.count < 2:
        return f"{middle}{unit} (1 prompt)"
    return f"{middle}{unit} ({low} to {high}, {found.count} prompts)"


def verdict_of(found: Interval | None, *, least: int = LEAST_PROMPTS) -> Verdict:
    """Return whether a difference is above zero: so it is, it is below, or nobody can tell."""
    if found is None or found.count < least or found.covers_zero:
        return "cannot be told here"
    return "holds" if found.low > 0 else "does not hold"
