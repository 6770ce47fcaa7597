"""All methods beside one another on the embedded model, on held-out prompts.

    python benchmarks/methods.py --height 80 --width 144    # all methods at 2,340 tokens
    python benchmarks/methods.py --few                      # the strongest at 7,488 tokens
    python benchmarks/methods.py --height 80 --width 144 --warm-up 0 --density 0.15 --density 0.3

Each method runs through the same backend with its own published settings, once with the paper's
warm-up for all (a fifth of the steps dense) and once without any; with `--density` those that have
a knob at equal density, the knob turned by bisection on a few recorded calls. Speed comes from
runs that measure nothing else; recall, output error and work (kept pairs, terms and the products
of planning, as a share of dense) from a pass of their own over a dense video. Keep the machine
idle; what is done is kept in the JSON, and the same command goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from fidelity import LAYERS, measure_fidelity
from frontier import held_out_prompts, run_settings, summarise, wanted_rows
from harness import save
from looking import LookConfig, look_at_video, plan_call
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

import svoo
from svoo import MethodConfig, SVOOConfig, available_methods
from svoo.methods import find_method
from svoo.methods.knobs import Knob, tune
from svoo.mini import load
from svoo.plugin.calibrate import read_prompts
from svoo.studies.run import LOOKED_AT

KNOBS = {row.name: row.knob for row in available_methods() if row.knob is not None}
OURS = ("svoo", "fast", "balanced", "careful")
PAPER = "paper"
FEW = (*OURS, PAPER, "spargeattn", "svg1", "svg2", "radial", "sol", "clusterattention", "sparsepr",
       "svg-ear")  # fmt: skip
GOOD = 30.0  # dB
DENSE = 0.99  # a density that is dense in all but name
FIGURES = ("density", "psnr", "ssim", "attention_speed_up", "speed_up")
COLUMNS = ("density", "work", "recall", "error", "PSNR", "SSIM", "calls", "loop")


@dataclass(frozen=True)
class Setting:
    """A method as it is run: its name, the warm-up of all, and the density it was tuned to."""

    method: str
    config: MethodConfig
    warm_up: float
    density: float | None = None

    @property
    def label(self) -> str:
        """The name of the row."""
        tuned = "" if self.density is None else f", density {self.density:g}"
        return f"{self.method}, warm-up {self.warm_up:g}{tuned}"


def methods_to_run() -> dict[str, MethodConfig]:
    """Return every method with its settings for the embedded model; ours also at three values of
    its knob, and as in the paper."""
    tried: dict[str, MethodConfig] = {PAPER: SVOOConfig.paper("mini"), "fast": SVOOConfig.fast()}
    tried |= {"balanced": SVOOConfig.balanced(), "careful": SVOOConfig.careful()}
    names = [row.name for row in available_methods() if row.name != "dense"]
    return tried | {name: find_method(name, "mini") for name in names}


def knob_of(name: str) -> Knob | None:
    """Return the knob of a row; paper mode has mass, and of our three settings one is enough."""
    if name in OURS:
        return KNOBS["svoo"] if name == "balanced" else None
    return KNOBS["svg2"] if name == PAPER else KNOBS.get(name)


class Recorded:
    """A few calls of a dense video, to measure densities on."""

    def __init__(self, pipe: Any, sizes: Mapping[str, int]) -> None:  # noqa: ANN401
        """Record them at a quarter and three quarters of the run."""
        steps = sizes["num_inference_steps"]
        self._calls: list[tuple[svoo.Run, svoo.Call, Tensor, Tensor, Tensor]] = []
        wanted = {steps // 4, steps * 3 // 4}

        def look(run: svoo.Run, call: svoo.Call, *tokens: Tensor) -> None:
            if call.step in wanted:
                query, key, value = (side.clone() for side in tokens)
                self._calls.append((run, call, query, key, value))

        config = LookConfig(look=look, layers=LAYERS[:2])
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


def tune_methods(
    tried: Mapping[str, MethodConfig], densities: Sequence[float], recorded: Recorded
) -> dict[float, dict[str, MethodConfig]]:
    """Return the methods at each density, those that have a knob and reach it within a tenth."""
    found: dict[float, dict[str, MethodConfig]] = {density: {} for density in densities}
    with Progress() as bar:
        for density in densities:
            for name, config in bar.track(tried.items(), description=f"knobs, {density:g}"):
                knob = knob_of(name)
                if knob is None:
                    continue
                tuned = tune(config, knob, density, recorded.density)
                value = getattr(tuned.config, knob.setting)
                said = f"{name}: {knob.setting} {value:.4g} keeps {tuned.density:.3f}"
                if abs(tuned.density - density) <= 0.1 * density:
                    found[density][name] = tuned.config
                else:
                    said += f", the nearest to {density:g} that it has here: left out"
                bar.console.print(said)
    return found


def all_settings(
    tried: Mapping[str, MethodConfig],
    tuned: Mapping[float, Mapping[str, MethodConfig]],
    warm_ups: Sequence[float],
) -> list[Setting]:
    """Return every setting with one warm-up for all (dense layers: none, as there are six)."""
    densities: dict[float | None, Mapping[str, MethodConfig]] = {}
    densities.update(tuned.items())
    densities = densities or {None: tried}
    return [
        Setting(name, replace(config.always_sparse(), dense_steps=float(share)), share, density)
        for share in warm_ups
        for density, configs in densities.items()
        for name, config in configs.items()
    ]


def add_fidelity(
    settings: Sequence[Setting], sizes: Mapping[str, int], prompt: str, out: Path, name: str
) -> dict[str, dict[str, float]]:
    """Return recall, output error and work of every setting, by label; what the JSON has is not
    measured again."""
    path = out / f"{name}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    about = {
        setting.label: {"setting": setting.label, "prompt": prompt, **sizes}
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
            found = measure_fidelity(pipe, missing, sizes, prompt, lambda: bar.advance(task))
        rows += [{**about[label], **figures} for label, figures in found.items()]
        save(out, name, rows)
    return {label: _find(rows, facts) or {} for label, facts in about.items()}


def _find(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the figures of the row with these facts, None if there is none."""
    for row in rows:
        if all(row.get(key) == value for key, value in facts.items()):
            return {key: row[key] for key in ("recall", "error", "work") if key in row}
    return None


def print_table(
    summary: Mapping[str, Mapping[str, float]], fidelity: Mapping[str, Mapping[str, Any]]
) -> None:
    """Print a row for every setting: shares of dense, PSNR in dB, speed-ups of attention calls
    (planning included) and of the denoising loop."""
    table = Table("setting")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for label, found in summary.items():
        seen = fidelity.get(label, {})
        shares = found["density"], *(seen.get(name) for name in ("work", "recall", "error"))
        table.add_row(
            label,
            *("-" if share is None else f"{share:.3f}" for share in shares),
            f"{found['psnr']:.1f}",
            f"{found['ssim']:.4f}",
            f"{found['attention_speed_up']:.2f}x",
            f"{found['speed_up']:.2f}x",
        )
    Console(width=140).print(table)


def say_what_counts(
    summary: Mapping[str, Mapping[str, float]], settings: Sequence[Setting]
) -> str:
    """Return our speed-up over the best other method's, of the settings that reach 30 dB and leave
    something out."""
    sparse = [setting for setting in settings if summary[setting.label]["density"] < DENSE]
    good = [setting for setting in sparse if summary[setting.label]["psnr"] >= GOOD]
    good.sort(key=lambda setting: -summary[setting.label]["speed_up"])
    lines = [f"At {GOOD:g} dB and more in the median, by speed-up of the loop:"]
    for setting in good:
        found = summary[setting.label]
        lines.append(f"  {found['speed_up']:.2f}x  {found['psnr']:.1f} dB  {setting.label}")
    ours = next((setting for setting in good if setting.method in OURS), None)
    other = next((setting for setting in good if setting.method not in (*OURS, PAPER)), None)
    if ours is None or other is None:
        who = "none of ours" if ours is None else "no other method"
        return "\n".join([*lines, f"No ratio: {who} reaches {GOOD:g} dB."])
    ratio = summary[ours.label]["speed_up"] / summary[other.label]["speed_up"]
    return "\n".join([*lines, f"{ours.label} over {other.label}: {ratio:.2f}"])


def draw(
    summary: Mapping[str, Mapping[str, float]], settings: Sequence[Setting], path: Path
) -> None:
    """Draw PSNR against density and against speed-up; ours and paper mode stand out, and settings
    without warm-up are hollow."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 13), layout="constrained")
    labels = {"density": "density of sparse calls", "speed_up": "speed-up of the denoising loop"}
    for axes, (name, label) in zip(figure.subplots(2), labels.items(), strict=True):
        for setting in settings:
            found = summary[setting.label]
            ours = setting.method in OURS
            colour = "tab:red" if ours else "black" if setting.method == PAPER else "tab:blue"
            place = found[name], found["psnr"]
            face = colour if setting.warm_up else "none"
            shape = "*" if ours else "D" if setting.method == PAPER else "o"
            size = 80 if ours else 26
            axes.scatter(*place, s=size, marker=shape, edgecolors=colour, facecolors=face)
            text = (
                "svoo, " + setting.method if ours and setting.method != "svoo" else setting.method
            )
            axes.annotate(
                text, place, (5, 2), textcoords="offset points", fontsize=7, color=colour
            )
        axes.axhline(GOOD, color="grey", linewidth=0.8, linestyle=":")
        axes.set(xlabel=label, ylabel="PSNR against dense, dB")
        axes.grid(visible=True, alpha=0.3)
    figure.suptitle("filled: with warm-up, hollow: no dense step", fontsize=9)
    figure.savefig(path, dpi=110)


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
    few: Annotated[bool, typer.Option("--few", help=f"Only {', '.join(FEW)}.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps of a run.")] = 20,
    frames: Annotated[int, typer.Option(help="Frames of the video.")] = 49,
    height: Annotated[int, typer.Option(help="80 with --width 144 gives 2,340 tokens.")] = 144,
    width: Annotated[int, typer.Option(help="Width in pixels.")] = 256,
) -> None:
    """Run what is not done yet, then print the table and the figure that counts, and draw."""
    known = methods_to_run()
    for name in only or []:
        if name not in known:
            raise SystemExit(f"no method called {name!r}; there are {', '.join(known)}")
    for share in (*(warm_up or ()), *(density or ())):
        if not 0 <= share <= 1:
            raise SystemExit(f"--warm-up and --density are fractions from 0 to 1, got {share:g}")
    chosen = only or (FEW if few else list(known))
    tried = {name: config for name, config in known.items() if name in chosen}
    call = {"num_frames": frames, "num_inference_steps": steps, "height": height, "width": width}
    tuned: dict[float, dict[str, MethodConfig]] = {}
    if density:
        pipe = load()
        pipe.set_progress_bar_config(disable=True)
        tuned = tune_methods(tried, density, Recorded(pipe, call))
    settings = all_settings(tried, tuned, [0.2, 0.0] if warm_up is None else warm_up)
    configs = {setting.label: setting.config for setting in settings}
    skipped = len(read_prompts(LOOKED_AT))  # our tolerance was chosen with these in sight
    texts = held_out_prompts(skipped + prompts)[skipped:]
    sizes = {"frames": frames, "steps": steps, "height": height, "width": width}
    name = f"methods-{height}x{width}"
    rows = run_settings(configs, texts, out, name, sizes)
    summary = summarise(wanted_rows(rows, configs, texts, sizes), FIGURES)
    fidelity = add_fidelity(settings, call, texts[0], out, f"{name}-fidelity")
    print_table(summary, fidelity)
    print(say_what_counts(summary, settings))
    draw(summary, settings, out / f"{name}.png")


if __name__ == "__main__":
    typer.run(main)
