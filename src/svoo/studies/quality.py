"""The paper's Tables 1 and 2: every method beside dense attention, with one warm-up for all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from svoo.metrics.scores import HIGHER_IS_BETTER
from svoo.studies.base import MAIN, TABLES, Claim, Job, Plot, Section, Skipped, Verdict, as_png
from svoo.studies.comparisons import (
    COLUMNS,
    PSNR,
    SPEED_UP,
    Column,
    Entry,
    by_prompt,
    difference,
    groups_of,
    make_table,
    read_entries,
    run_jobs,
    say_difference,
    scatter,
    verdict_of,
)
from svoo.studies.lab import Lab
from svoo.studies.results import Results
from svoo.studies.runs import RunRow
from svoo.studies.settings import BASELINES, OURS, PAPER, main_settings, other_settings

_NOTE = (
    "Medians over prompts, in brackets the 95 % bootstrap interval. Bold is best, underlined "
    "second best; several are marked where the paired difference over prompts covers zero, none "
    "with fewer than five prompts. Density is that of the sparse calls."
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
        """Return the runs: the paper's table with its warm-up and with none, then all methods at
        the smaller size, then image to video."""
        scale, model = lab.scale, lab.model
        warm_up = model.warm_up if model else 0.2
        task = "image to video" if lab.pipelines.needs_image() else "text to video"
        main, others = main_settings(lab, warm_up), other_settings(lab, warm_up)
        names = ["dense", *(setting.name for setting in main)]
        large, small = (self._size_name(lab, size) for size in (scale.large, scale.small))
        group = f"{task}, {large}, {warm_up:.0%} warm-up"
        jobs = run_jobs(lab, group, main, scale.large, score=names, turn=MAIN)
        never = main_settings(lab, 0.0)
        jobs += run_jobs(
            lab, f"{task}, {large}, no warm-up", never, scale.large, score=names, turn=MAIN
        )
        ours = [setting for setting in main if setting.name in (PAPER, OURS)]
        group = f"all other methods, {task}, {small}, {warm_up:.0%} warm-up"
        jobs += run_jobs(lab, group, [*ours, *others], scale.small, turn=TABLES)
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
        settings = main_settings(lab, warm_up)
        return run_jobs(lab, group, settings, lab.scale.small, task="image", turn=TABLES)

    @staticmethod
    def _size_name(lab: Lab, size: object) -> str:
        tokens = lab.tokens(size)  # type: ignore[arg-type]  # a size of the scale
        return "the model's own size" if tokens is None else f"{tokens:,} tokens"

    def show(self, results: Results) -> Section:
        """Return a table and a plot for each group."""
        groups = groups_of(read_entries(results, self.name))
        parts: list[object] = []
        for group, entries in groups.items():
            parts.append(make_table(group, entries, _columns(entries), _NOTE))
            if len(by_prompt(entries, PSNR)) > 1:
                parts.append(_draw(group, entries, len(parts)))
        first = next(iter(groups.values()), [])
        never = next((found for name, found in groups.items() if "no warm-up" in name), [])
        claims = [_best_of_five(first), *_ours(never)]
        return Section(claims, parts)  # type: ignore[arg-type]  # tables and plots


def _columns(entries: Sequence[Entry]) -> list[Column]:
    """Return the usual columns and one for every score that some run has."""
    names = dict.fromkeys(name for entry in entries for name in entry.run.scores)

    def score(name: str, run: RunRow) -> float | None:
        return run.scores.get(name)

    scores = [
        Column(name, partial(score, name), "{:.4g}", HIGHER_IS_BETTER.get(name)) for name in names
    ]
    return [*COLUMNS[:3], *scores, *COLUMNS[3:]]


def _draw(group: str, entries: Sequence[Entry], number: int) -> Plot:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), layout="constrained")
    scatter(figure.subplots(), entries)
    return Plot(f"quality-{number}", group, as_png(figure), "Medians over prompts.")


def _best_of_five(entries: Sequence[Entry]) -> Claim:
    """Say whether SVOO in paper mode has both the best PSNR and the best speed-up of the five."""
    text = "SVOO is best among the five: closest to dense and fastest"
    verdicts: list[Verdict] = []
    figures = []
    for baseline in BASELINES:
        for column, unit in ((PSNR, " dB"), (SPEED_UP, "x")):
            found = difference(entries, PAPER, baseline, column)
            verdicts.append(verdict_of(found))
            if found is not None:
                figures.append(f"{say_difference(found, unit)} against {baseline}")
    if not figures:
        return Claim(text, "cannot be told here", "nothing was run")
    verdict: Verdict = "cannot be told here"
    if "does not hold" in verdicts:
        verdict = "does not hold"
    elif all(found == "holds" for found in verdicts):
        verdict = "holds"
    return Claim(text, verdict, "; ".join(figures))


def _ours(entries: Sequence[Entry]) -> list[Claim]:
    """Say how our default mode stands beside paper mode without any dense step."""
    claims = []
    for column, unit, word in ((PSNR, " dB", "closer to dense"), (SPEED_UP, "x", "faster")):
        found = difference(entries, OURS, PAPER, column)
        if found is not None:
            text = f"Ours is {word} than SVOO as in the paper, both without a dense step"
            shown = say_difference(found, unit)
            claims.append(Claim(text, verdict_of(found), shown, of_paper=False))
    return claims
