"""All methods beside one another on the embedded model, on held-out prompts.

    python benchmarks/methods.py --height 80 --width 144    # all methods at 2,340 tokens
    python benchmarks/methods.py --few                      # the strongest at 7,488 tokens
    python benchmarks/methods.py --few --frames 97 --warm-up 0 --prompts 2 --no-fidelity  # 14,400
    python benchmarks/methods.py --height 80 --width 144 --warm-up 0 --density 0.15 --density 0.3
    python benchmarks/methods.py --height 80 --width 144 --warm-up 0 --prompts 2 --compensate mean

Each method runs through the same backend with its own published settings, once with the paper's
warm-up for all (a fifth of the steps dense) and once without any; with `--density` those that have
a knob at equal density, the knob turned by bisection on a few recorded calls. Speed comes from
runs that measure nothing else; recall, output error and work (kept pairs, terms and the products
of planning, as a share of dense) from a pass of their own over a dense video. A method that fails
on a prompt is a row that says so. Keep the machine idle; what is done is kept in the JSON, and the
same command goes on from there, and tries again what failed. Prompt comes after prompt, so a run
that was stopped can be read with fewer `--prompts`; the table says how many there were. Rows of
other weights, or of another profile, are not taken for rows of a run.

`--page docs/methods.md` (with `--out docs/benchmarks`) puts the table, the figure that counts and
the plot into the page's section of that run; when all is done already it does nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from fidelity import LAYERS, measure_fidelity
from frontier import count_runs, describe_failure, held_out_prompts, run_settings, wanted_rows
from harness import fingerprint, machine, save
from looking import LookConfig, look_at_video, plan_call
from methods_table import (
    FASTER,
    NEAR,
    OURS,
    PAPER,
    Results,
    Setting,
    as_markdown,
    describe,
    draw,
    print_table,
    say_what_counts,
    say_who_is_ahead,
)
from pages import check_section, fill_section
from rich.progress import Progress
from torch import Tensor

import svoo
from svoo import MethodConfig, SVOOConfig, available_methods
from svoo.catalogue import find_model
from svoo.methods import find_method
from svoo.methods.knobs import Knob, tune
from svoo.methods.svoo.config import FAST
from svoo.mini import load

KNOBS = {row.name: row.knob for row in available_methods() if row.knob is not None}
DEFAULT_FRAMES = 49  # at 144 x 256 these are 7,488 tokens
# The paper's five, all that have terms or corrections for the rest, and what is fast when small.
FEW = (*OURS, PAPER, "spargeattn", "svg1", "svg2", "radial", "sol", "clusterattention", "sparsepr",
       "svg-ear", "pisa", "rainfusion2", "adaspa")  # fmt: skip


def methods_to_run() -> dict[str, MethodConfig]:
    """Return every method with its settings for the embedded model; ours also at other values of
    its one knob, and as in the paper."""
    tried: dict[str, MethodConfig] = {PAPER: SVOOConfig.paper("mini")}
    tried |= {"fast": SVOOConfig.fast(), "careful": SVOOConfig.careful()}
    tried[FASTER] = SVOOConfig(tolerance=2 * FAST)
    names = [row.name for row in available_methods() if row.name != "dense"]
    return tried | {name: find_method(name, "mini") for name in names}


def knob_of(name: str) -> Knob | None:
    """Return the knob of a row; paper mode has mass, and of our settings one is enough."""
    if name in OURS:
        return KNOBS["svoo"] if name == "svoo" else None
    return KNOBS["svg2"] if name == PAPER else KNOBS.get(name)


class Recorded:
    """A few calls of a dense video, to measure densities on."""

    def __init__(self, pipe: Any, sizes: Mapping[str, int]) -> None:  # noqa: ANN401
        """Record those of all layers at a quarter and three quarters of the run."""
        steps = sizes["num_inference_steps"]
        self._calls: list[tuple[svoo.Run, svoo.Call, Tensor, Tensor, Tensor]] = []
        wanted = {steps // 4, steps * 3 // 4}

        def look(run: svoo.Run, call: svoo.Call, *tokens: Tensor) -> None:
            if call.step in wanted:
                query, key, value = (side.clone() for side in tokens)
                self._calls.append((run, call, query, key, value))

        config = LookConfig(look=look, layers=range(find_model("mini").layers))
        look_at_video(pipe, config, sizes, last_step=max(wanted))

    def density(self, config: MethodConfig) -> float:
        """Return the mean density of a method's plans, without warm-up; dense counts as 1."""
        found = []
        for run, call, *tokens in self._calls:
            decision = plan_call(config.always_sparse().start(run), call, *tokens)
            if isinstance(decision, svoo.Dense):
                found.append(1.0)
                continue
            extra = 0.0
            if isinstance(decision, svoo.Corrected):
                extra = decision.extra
                decision = decision.plan
            found.append(min(1.0, float(decision.density().mean()) + extra))
        return sum(found) / len(found)


class Knobs:
    """The value of each method's knob for a density, kept in a JSON of their own."""

    def __init__(self, out: Path, name: str, sizes: Mapping[str, int], weights: str) -> None:
        """Begin with what the JSON has."""
        self.out, self.name, self.sizes, self.weights = out, name, dict(sizes), weights
        path = out / f"{name}.json"
        self.rows: list[dict[str, Any]] = (
            json.loads(path.read_text())["rows"] if path.exists() else []
        )
        self.left_out: list[str] = []  # who cannot have which density
        self._recorded: Recorded | None = None

    def tune_all(
        self, tried: Mapping[str, MethodConfig], densities: Sequence[float]
    ) -> dict[float, dict[str, MethodConfig]]:
        """Return the methods at each density, those that have a knob and reach it within a
        tenth."""
        found: dict[float, dict[str, MethodConfig]] = {density: {} for density in densities}
        self.left_out = [
            f"{name} (no knob)" for name in tried if knob_of(name) is None and name not in OURS
        ]
        with Progress() as bar:
            for density in densities:
                for name, config in bar.track(tried.items(), description=f"knobs, {density:g}"):
                    knob = knob_of(name)
                    if knob is None:
                        continue
                    row = self._row(name, config, knob, density)
                    if "failed" in row:
                        said = f"{name} at {density:g} ({row['failed']})"
                        self.left_out.append(said)
                    elif abs(row["kept"] - density) <= NEAR * density:
                        change: dict[str, Any] = {knob.setting: row["value"]}
                        found[density][name] = replace(config, **change)
                        said = f"{name}: {knob.setting} {row['value']:.4g} keeps {row['kept']:.3f}"
                    else:
                        said = f"{name} at {density:g} (the nearest it has is {row['kept']:.3f})"
                        self.left_out.append(said)
                    bar.console.print(said)
        return found

    def _row(self, name: str, config: MethodConfig, knob: Knob, density: float) -> dict[str, Any]:
        """Return the knob's value and what it keeps, or why there is none."""
        facts = {"method": name, "density": density, **self.sizes, "setting": knob.setting}
        facts["weights"] = self.weights
        facts["config"] = json.loads(json.dumps(config.as_dict()))
        for row in self.rows:
            if all(row.get(key) == value for key, value in facts.items()):
                return row
        if self._recorded is None:
            pipe = load()
            pipe.set_progress_bar_config(disable=True)
            self._recorded = Recorded(pipe, self.sizes)
        try:
            tuned = tune(config, knob, density, self._recorded.density)
        except Exception as error:  # noqa: BLE001 (the others shall be tuned)
            return {"failed": describe_failure(error)}
        found = {"value": getattr(tuned.config, knob.setting), "kept": tuned.density}
        self.rows.append({**facts, **found})
        save(self.out, self.name, self.rows)
        return self.rows[-1]


def all_settings(
    tried: Mapping[str, MethodConfig],
    tuned: Mapping[float, Mapping[str, MethodConfig]],
    warm_ups: Sequence[float],
    terms: Literal["mean", "far"] | None = None,
) -> list[Setting]:
    """Return every setting with one warm-up for all (dense layers: none, as there are few). With
    `terms` those that drop what they leave out get such terms; the others are left out, but for
    ours."""
    if terms is not None:
        dropping = {name: config for name, config in tried.items() if not config.compensate}
        with_terms = {n: replace(config, compensate=terms) for n, config in dropping.items()}
        own = all_settings({n: c for n, c in tried.items() if n == "svoo"}, {}, warm_ups)
        return own + [
            replace(setting, terms=terms) for setting in all_settings(with_terms, {}, warm_ups)
        ]
    densities: dict[float | None, Mapping[str, MethodConfig]] = {}
    densities.update(tuned.items())
    densities = densities or {None: tried}
    return [
        Setting(name, with_warm_up(config, share, even=density is not None), share, density)
        for share in warm_ups
        for density, configs in densities.items()
        for name, config in configs.items()
    ]


def with_warm_up(config: MethodConfig, share: float, *, even: bool = False) -> MethodConfig:
    """Return a method whose first steps are dense, this share of them, and nothing else of its own
    warm-up; sparse steps that are more careful stay so, unless all have to be alike (`even`)."""
    sparse = config.always_sparse()
    if not even and isinstance(config, SVOOConfig) and isinstance(sparse, SVOOConfig):
        sparse = replace(sparse, careful_start=config.careful_start)
    return replace(sparse, dense_steps=float(share))


def add_fidelity(
    settings: Sequence[Setting], sizes: Mapping[str, int], about_run: Mapping[str, str], path: Path
) -> dict[str, dict[str, float]]:
    """Return recall, output error and work of every setting, by label; what the JSON has is not
    measured again. `about_run`: the prompt and the weights."""
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    about = {
        setting.label: {"setting": setting.label, **about_run, **sizes}
        | {"config": json.loads(json.dumps(setting.config.as_dict()))}
        for setting in settings
    }
    known = {label: _find(rows, facts) for label, facts in about.items()}
    missing = {
        setting.label: setting.config for setting in settings if known[setting.label] is None
    }
    if missing:
        pipe = load()
        pipe.set_progress_bar_config(disable=True)
        with Progress() as bar:
            calls = sizes["num_inference_steps"] * len(LAYERS)
            task = bar.add_task("recall and errors", total=calls)
            found = measure_fidelity(
                pipe, missing, sizes, about_run["prompt"], lambda: bar.advance(task)
            )
        rows += [{**about[label], **figures} for label, figures in found.items()]
        save(path.parent, path.stem, rows)
    return {label: _find(rows, facts) or {} for label, facts in about.items()}


def _find(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the figures of the row with these facts, None if there is none."""
    for row in rows:
        if all(row.get(key) == value for key, value in facts.items()):
            return {key: row[key] for key in ("recall", "error", "work") if key in row}
    return None


def main(
    *,
    out: Annotated[Path, typer.Option(help="Where JSON and plot go.")] = Path("out/benchmarks"),
    prompts: Annotated[int, typer.Option(min=1, help="How many held-out prompts.")] = 5,
    warm_up: Annotated[
        list[float] | None,
        typer.Option(
            help="Part of the steps that stays dense; may be repeated. [default: 0.2, 0]"
        ),
    ] = None,
    density: Annotated[
        list[float] | None,
        typer.Option(help="Methods with a knob, tuned to this; may be repeated."),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="A method; may be repeated.")] = None,
    compensate: Annotated[
        str | None,
        typer.Option(help="mean or far: the same terms for whatever a method drops of itself."),
    ] = None,
    few: Annotated[bool, typer.Option("--few", help=f"Only {', '.join(FEW)}.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps of a run.")] = 20,
    frames: Annotated[int, typer.Option(help="Frames of the video.")] = DEFAULT_FRAMES,
    height: Annotated[int, typer.Option(help="80 with --width 144 gives 2,340 tokens.")] = 144,
    width: Annotated[int, typer.Option(help="Width in pixels.")] = 256,
    fidelity: Annotated[
        bool, typer.Option(help="Recall, errors and work, from a dense pass of their own.")
    ] = True,
    page: Annotated[
        Path | None, typer.Option(help="A page whose section of this run is filled.")
    ] = None,
) -> None:
    """Run what is not done yet, then print the table and the figure that counts, and draw."""
    if page is not None and only:
        raise SystemExit("--page is for whole runs: leave out --only")
    known = methods_to_run()
    for name in only or []:
        if name not in known:
            raise SystemExit(f"no method called {name!r}; there are {', '.join(known)}")
    for share in (*(warm_up or ()), *(density or ())):
        if not 0 <= share <= 1:
            raise SystemExit(f"--warm-up and --density are fractions from 0 to 1, got {share:g}")
    if compensate not in (None, "mean", "far") or (compensate and density):
        raise SystemExit(
            f"--compensate must be mean or far, and goes without --density; got {compensate}"
        )
    terms = cast(Literal["mean", "far"] | None, compensate)
    chosen = only or (FEW if few else list(known))
    tried = {name: config for name, config in known.items() if name in chosen}
    call = {"num_frames": frames, "num_inference_steps": steps, "height": height, "width": width}
    name = f"methods-{height}x{width}" + ("" if frames == DEFAULT_FRAMES else f"x{frames}")
    name += "-equal" if density else ""
    name += "" if terms is None else f"-{terms}"
    if page is not None:
        check_section(page, name)  # before hours of work
    weights = fingerprint(load())
    knobs = Knobs(out, f"{name}-knobs", call, weights)
    tuned = knobs.tune_all(tried, density) if density else {}
    settings = all_settings(tried, tuned, [0.2, 0.0] if warm_up is None else warm_up, terms)
    configs = {setting.label: setting.config for setting in settings}
    runs = count_runs(len(settings), prompts)
    print(f"{len(settings)} settings, {prompts} prompts: {runs} videos, what is done included")
    texts = held_out_prompts(prompts)
    sizes: dict[str, int | str] = {
        "frames": frames, "steps": steps, "height": height, "width": width, "weights": weights,
        "processor": str(machine()["processor"]),
    }  # fmt: skip
    rows = wanted_rows(run_settings(configs, texts, out, name, sizes), configs, texts, sizes)
    about_run = {"prompt": texts[0], "weights": weights}
    path = out / f"{name}-fidelity.json"
    results = Results(
        settings, rows, add_fidelity(settings, call, about_run, path) if fidelity else {}
    )
    print_table(results)
    for line in (*(say_what_counts(results, by) for by in ("psnr", "least")),
                 *say_who_is_ahead(results), *knobs.left_out):  # fmt: skip
        print(line)
    picture = out / f"{name}{'-part' if only else ''}.png"  # of a part, beside that of the whole
    draw(results, picture)
    if page is not None:
        about = describe(out / f"{name}.json", rows, sizes, knobs.left_out, fidelity=fidelity)
        place = Path(os.path.relpath(picture, page.parent)).as_posix()
        fill_section(page, name, as_markdown(results, about, place))


if __name__ == "__main__":
    typer.run(main)
