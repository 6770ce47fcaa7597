"""The paper's Tables 1 and 2: every method beside dense attention, with one warm-up for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from svoo.metrics.scores import HIGHER_IS_BETTER
from svoo.studies.base import (
    BARE,
    BEST_OF_FIVE,
    FIRST,
    MAIN,
    TABLES,
    Cell,
    Claim,
    Job,
    Plot,
    Section,
    Skipped,
    Table,
    Verdict,
    as_png,
)
from svoo.studies.comparisons import (
    PSNR,
    SPEED_UP,
    Column,
    Entry,
    by_prompt,
    dense_in_content,
    difference,
    groups_of,
    make_table,
    read_entries,
    run_jobs,
    say_difference,
    say_times,
    verdict_of,
    well_timed,
)
from svoo.studies.lab import Lab
from svoo.studies.results import Results
from svoo.studies.runs import RunRow
from svoo.studies.scatter import scatter
from svoo.studies.settings import (
    BASELINES,
    OURS,
    PAPER,
    RIVALS,
    main_settings,
    other_settings,
)
from svoo.studies.statistics import LEAST_PROMPTS, Interval

_NEVER = "no warm-up"

_SAID = (
    "the paper, Wan 2.1 1.3B: SVOO 29.99 dB at 1.93x, SVG2 29.27 at 1.73x, Radial 26.31 at 1.62x, "
    "SVG1 25.71 at 1.56x, SpargeAttn 25.14 at 1.45x"
)


class QualityStudy:
    """Quality and speed of all methods."""

    name = "quality"
    title = "Quality and speed of all methods"
    paper = "Tables 1 and 2"
    about = (
        "Every method beside dense attention, same prompt and noise: how like the dense video the "
        "sparse one is, and how much faster it was made."
    )

    def jobs(self, lab: Lab) -> list[Job]:
        """Return the runs: the paper's table at the smaller size, at the larger one, without
        warm-up, then the other methods and image to video at the smaller size."""
        scale, model = lab.scale, lab.model
        warm_up = model.warm_up if model else 0.2
        task = "image to video" if lab.pipelines.needs_image() else "text to video"
        main, others = main_settings(lab, warm_up), other_settings(lab, warm_up)
        large, small = (self._size_name(lab, size) for size in (scale.large, scale.small))
        every = f"all methods, {task}, {small}, {warm_up:.0%} warm-up"
        jobs = run_jobs(lab, every, main, scale.small, score=True, turn=FIRST)
        if scale.large != scale.small:
            group = f"{task}, {large}, {warm_up:.0%} warm-up"
            jobs += run_jobs(lab, group, main, scale.large, score=True, turn=MAIN)
        never, group = main_settings(lab, 0.0), f"{task}, {large}, {_NEVER}"
        jobs += run_jobs(lab, group, never, scale.large, score=True, turn=BARE)
        jobs += run_jobs(lab, every, others, scale.small, score=True, dense=False, turn=TABLES)
        if task == "text to video":
            group = f"image to video, {small}, {warm_up:.0%} warm-up"
            jobs += self._image_jobs(lab, group, warm_up)
        return jobs

    def _image_jobs(self, lab: Lab, group: str, warm_up: float) -> list[Job]:
        try:
            lab.require_image()
        except Skipped as why:
            reason = f"image to video: {why}"

            def skip() -> dict[str, str]:
                raise Skipped(reason)

            return [Job("image to video", skip, 0.0, turn=TABLES)]
        settings, small = main_settings(lab, warm_up), lab.scale.small
        return run_jobs(lab, group, settings, small, task="image", score=True, turn=TABLES)

    @staticmethod
    def _size_name(lab: Lab, size: object) -> str:
        tokens = lab.tokens(size)  # type: ignore[arg-type]  # a size of the scale
        return "the model's own size" if tokens is None else f"{tokens:,} tokens"

    def show(self, results: Results) -> Section:
        """Return a table and a plot for each group, the largest videos first."""
        found = groups_of(read_entries(results, self.name))
        groups = dict(sorted(found.items(), key=lambda item: -(item[1][0].run.tokens or 0)))
        parts: list[object] = []
        for group, entries in groups.items():
            parts.append(make_table(group, entries))
            scores = _scores(entries)
            if scores:
                title = f"Scores that need no dense video: {group}"
                parts.append(make_table(title, entries, scores))
            if len(by_prompt(entries, PSNR)) > 1:
                parts.append(_draw(group, entries, len(parts)))
            parts += _against_each(group, entries)
        text = {name: rows for name, rows in groups.items() if "text to video" in name}
        text = text or groups  # a model that makes video from images alone
        warm = {name: rows for name, rows in text.items() if _NEVER not in name}
        never = {name: rows for name, rows in text.items() if _NEVER in name}
        best = _best_of_five(*_judged(warm, (PAPER, *BASELINES)))
        claims = [best, *_ours(*_judged(never, (PAPER, OURS)))]
        return Section(claims, parts)  # type: ignore[arg-type]  # tables and plots


def _judged(
    groups: Mapping[str, Sequence[Entry]], names: Sequence[str]
) -> tuple[str, list[Entry]]:
    """Return the table that a claim about these rows is judged by: the first (the largest videos)
    where all of them have enough prompts for a verdict, else the one with most."""

    def prompts(entries: Sequence[Entry]) -> int:
        timed = well_timed(entries)
        have = [{e.run.prompt for e in timed if e.setting == name} for name in names]
        return min(LEAST_PROMPTS, len(set.intersection(*have)))

    chosen = max(groups, key=lambda name: prompts(groups[name]), default="")
    return chosen, list(groups.get(chosen, []))


def _scores(entries: Sequence[Entry]) -> list[Column]:
    """Return a column for every score that some run has."""
    names = dict.fromkeys(name for entry in entries for name in entry.run.scores)

    def score(name: str, run: RunRow) -> float | None:
        return run.scores.get(name)

    return [
        Column(name, partial(score, name), "{:.4g}", HIGHER_IS_BETTER.get(name)) for name in names
    ]


def _draw(group: str, entries: Sequence[Entry], number: int) -> Plot:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), layout="constrained")
    scatter(figure.subplots(), entries)
    title = f"PSNR against speed-up: {group}"
    return Plot(f"quality-{number}", title, as_png(figure), "Medians over prompts.")


def _best_of_five(group: str, entries: Sequence[Entry]) -> Claim:
    """Say whether SVOO in paper mode has both the best PSNR and the best speed-up of the five."""
    verdicts: list[Verdict] = []
    figures = []
    ahead: dict[str, list[str]] = {"closer to dense than": [], "faster than": []}
    for baseline in BASELINES:
        both = []
        for column, unit, word in zip((PSNR, SPEED_UP), (" dB", "x"), ahead, strict=True):
            found = difference(entries, PAPER, baseline, column)
            verdicts.append(verdict_of(found))
            if verdicts[-1] == "holds":
                ahead[word].append(baseline)
            if found is not None:
                both.append(say_difference(found, unit))
        if both:
            figures.append(f"against {baseline} {' and '.join(both)}")
    if not figures:
        return Claim(BEST_OF_FIVE, "cannot be told here", "nothing was run", said=_SAID)
    first = "; ".join(
        f"{word}: {', '.join(names) or 'none of the four'}" for word, names in ahead.items()
    )
    verdict: Verdict = "cannot be told here"
    if "does not hold" in verdicts:
        verdict = "does not hold"
    elif all(found == "holds" for found in verdicts):
        verdict = "holds"
    figure = f"{group}: {first}; {'; '.join(figures)}"
    return Claim(BEST_OF_FIVE, verdict, figure, said=_SAID)


def _ours(group: str, entries: Sequence[Entry]) -> list[Claim]:
    """Say how our default mode stands beside paper mode without any dense step."""
    claims = []
    for column, unit, word in ((PSNR, " dB", "closer to dense"), (SPEED_UP, "x", "faster")):
        found = difference(entries, OURS, PAPER, column)
        if found is not None:
            text = f"Ours is {word} than SVOO as in the paper, both without a dense step"
            shown = f"{group}: {say_difference(found, unit)}"
            claims.append(Claim(text, verdict_of(found), shown, of_paper=False))
    return claims


def _against_each(group: str, entries: Sequence[Entry]) -> list[Table]:
    """Return a table of what ours differs by from each main method, paired by prompt, and who of
    all rows is ahead of it: none if there is nothing to compare."""
    lines = []
    for rival in RIVALS:
        found = [difference(entries, OURS, rival, column) for column in (PSNR, SPEED_UP)]
        if any(found):
            texts = (
                _say_better(*facts, rival)
                for facts in zip(found, (" dB", "x"), ("closer", "faster"), strict=True)
            )
            lines.append([Cell(rival), *map(Cell, texts)])
    title = f"Ours minus each main method: {group}"
    note = (
        "Medians of the differences over the prompts that both have, in brackets the 95 % "
        "bootstrap interval. Nobody is named where it covers zero or has fewer than five prompts. "
        f"Of all rows above, closer to dense than ours: {_ahead(entries, PSNR)}; faster: "
        f"{_ahead(entries, SPEED_UP)}."
    )
    columns = ["ours minus", "PSNR, dB", "speed-up"]
    return [Table(title, columns, lines, f"{note} {say_times(entries)}")] if lines else []


def _ahead(entries: Sequence[Entry], column: Column) -> str:
    """Return the settings that are better than ours, prompt by prompt, as far as can be told."""
    left = (OURS, *dense_in_content(entries))
    others = dict.fromkeys(entry.setting for entry in entries if entry.setting not in left)
    ahead = [
        name for name in others if verdict_of(difference(entries, name, OURS, column)) == "holds"
    ]
    return ", ".join(ahead) or "none"


def _say_better(found: Interval | None, unit: str, word: str, rival: str) -> str:
    """Return a difference in words, and who is better where that can be told."""
    if found is None:
        return ""
    better = {"holds": OURS, "does not hold": rival}.get(verdict_of(found))
    who = "cannot be told" if better is None else f"{better} is {word}"
    return f"{say_difference(found, unit)}: {who}"
