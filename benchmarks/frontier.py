"""What each setting gives and costs on the embedded model: quality and density against speed-up.

    python benchmarks/frontier.py --out out/benchmarks

Every setting generates the same prompts with the same noise as dense attention does, one prompt
after the other, all settings of a prompt in turn. Figures are medians over prompts. Keep the
machine idle: about half a minute a run on two cores. What is done is kept in `frontier.json`: the
same command goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from harness import save
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from svoo import MethodConfig, SVOOConfig
from svoo.catalogue import find_model
from svoo.mini import load
from svoo.mini.vocabulary import MOTIONS
from svoo.plugin.calibrate import MINI_PROMPTS, read_inputs
from svoo.plugin.trial import Trial, run_trial, warm_up
from tools.training.questions import held_out_scenes

FIGURES = ("speed_up", "attention_speed_up", "density", "psnr", "ssim")


def settings() -> dict[str, SVOOConfig]:
    """Return the settings to try: the paper's, that of models which nothing was tuned on (at
    several masses), and changes to a centre; "default" is what the embedded model has."""
    tried = {"paper": SVOOConfig.paper("mini"), "default": SVOOConfig.for_model("mini")}
    tried["general"] = SVOOConfig(dense_layers=0)  # one layer of six would be a sixth of the time
    for mass in (0.5, 0.7, 0.9):  # with the paper's clusters
        tried[f"general, mass {mass}"] = replace(tried["general"], mass=mass, fineness=1.0)
    for ramp in (0.3, 0.7, 1.0):
        tried[f"default, ramp {ramp}"] = replace(tried["default"], ramp=ramp)
    far = SVOOConfig.balanced()
    tried |= {"fast": SVOOConfig.fast(), "balanced": far, "careful": SVOOConfig.careful()}
    tried["balanced, no groups"] = replace(far, groups=0)
    tried["balanced, co-clusters"] = replace(far, clustering="co")
    for fineness in (2.0, 5.0):
        tried[f"balanced, fineness {fineness:.0f}"] = replace(far, fineness=fineness)
    tried["balanced, recluster 2"] = replace(far, recluster_every=2)
    tried["balanced, branches apart"] = replace(far, share_branches=False)
    tried["default, recluster 1"] = replace(tried["default"], recluster_every=1)
    centre = replace(
        tried["default"],
        mass=0.45,
        recluster_every=2,
        dense_steps=0.1,
        ramp=0.0,
        fineness=4.0,
        iterations=1,
    )
    changes: dict[str, dict[str, Any]] = {"centre": {}}
    for mass in (0.3, 0.7):
        changes[f"mass {mass}"] = {"mass": mass}
    changes["no compensation"] = {"compensate": False}
    for every in (1, 4, 8, 20):
        changes[f"recluster {every}"] = {"recluster_every": every}
    for dense in (0.0, 0.2):
        changes[f"warm-up {dense}"] = {"dense_steps": dense}
    changes["warm-up 0.0, ramp 0.3"] = {"dense_steps": 0.0, "ramp": 0.3}
    changes["branches apart"] = {"share_branches": False}
    changes["iterations 2"] = {"iterations": 2}
    for fineness in (2.0, 6.0):
        changes[f"fineness {fineness:.0f}"] = {"fineness": fineness}
    return tried | {name: replace(centre, **change) for name, change in changes.items()}


def figures_of(trial: Trial, dense: Trial) -> dict[str, Any]:
    """Return what is compared."""
    assert trial.likeness is not None
    return {
        "speed_up": dense.denoising / trial.denoising,
        "attention_speed_up": dense.attention / trial.attention,
        "density": trial.density,
        "psnr": trial.likeness.psnr,
        "ssim": trial.likeness.ssim,
        "recall": trial.recall,
        "work": trial.stats.work,
        "denoising": trial.denoising,
        "dense_denoising": dense.denoising,
        **{f"seconds_{phase}": value for phase, value in trial.stats.seconds.items()},
    }


def main(
    *,
    out: Annotated[Path, typer.Option(help="Where JSON and plot go.")] = Path("out/benchmarks"),
    prompts: Annotated[int, typer.Option(min=1, help="How many prompts.")] = 5,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out",
            help="Prompts that were never alone in a training clip and are not in the profile, "
            "instead of the first that the profile was measured on.",
        ),
    ] = False,
    frames: Annotated[int, typer.Option(help="97 gives about 15,000 tokens.")] = 49,
    steps: Annotated[int, typer.Option(help="Denoising steps of a run.")] = 20,
    height: Annotated[int, typer.Option(help="80 with --width 144 gives 2,340 tokens.")] = 144,
    width: Annotated[int, typer.Option(help="Width in pixels.")] = 256,
    only: Annotated[list[str] | None, typer.Option(help="A setting; may be repeated.")] = None,
    name: Annotated[str, typer.Option(help="Name of the JSON.")] = "frontier",
) -> None:
    """Run what is not done yet, then print the table and draw the plot."""
    known = settings()
    for key in only or []:
        if key not in known:
            raise SystemExit(f"no setting called {key!r}; there are {', '.join(known)}")
    tried = {key: config for key, config in known.items() if not only or key in only}
    if held_out:
        texts = held_out_prompts(prompts)
    else:
        texts = [entry["prompt"] for entry in read_inputs(MINI_PROMPTS, count=prompts)]
    sizes = {"frames": frames, "steps": steps, "height": height, "width": width}
    rows = run_settings(tried, texts, out, name, sizes)
    summary = summarise(rows)
    print_table(summary)
    draw(summary, out / f"{name}.png")


def held_out_prompts(count: int) -> list[str]:
    """Return prompts that were never alone in a training clip and that nothing was chosen on."""
    return [scene.caption for scene in held_out_scenes(MOTIONS, count)]


def run_settings(
    tried: Mapping[str, MethodConfig],
    texts: Sequence[str],
    out: Path,
    name: str,
    sizes: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Run every setting on every prompt, dense first, and return the rows; those that the JSON
    has already are not run again. `sizes`: frames, steps, height, width."""
    pipe, model = load(), find_model("mini")
    pipe.set_progress_bar_config(disable=True)
    path = out / f"{name}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    warm = False
    with Progress() as bar:
        task = bar.add_task("running", total=len(texts) * (len(tried) + 1))
        for text in texts:
            call = {
                "prompt": text,
                **model.call_defaults,
                "num_frames": sizes["frames"],
                "num_inference_steps": sizes["steps"],
                "height": sizes["height"],
                "width": sizes["width"],
            }
            about = {  # a row of another run under the same name is not taken for one of this
                key: {"prompt": text, "setting": key, **sizes}
                | {"config": json.loads(json.dumps(config.as_dict()))}
                for key, config in tried.items()
            }
            missing = [
                key
                for key, facts in about.items()
                if not any(facts == {name: row.get(name) for name in facts} for row in rows)
            ]
            if not missing:
                bar.advance(task, len(tried) + 1)
                continue
            if not warm:
                warm_up(pipe, call)
                warm = True
            dense = run_trial(pipe, "dense", None, call=call)
            bar.advance(task)
            for key in missing:
                trial = run_trial(pipe, key, tried[key], call=call, against=dense)
                rows.append({**about[key], **figures_of(trial, dense)})
                save(out, name, rows)
                bar.advance(task)
    return rows


def summarise(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the median over prompts of every figure, by setting."""
    names = dict.fromkeys(row["setting"] for row in rows)
    return {
        name: {
            figure: median(row[figure] for row in rows if row["setting"] == name)
            for figure in FIGURES
        }
        for name in names
    }


def print_table(summary: dict[str, dict[str, float]]) -> None:
    """Print a row for every setting."""
    table = Table("setting", *FIGURES)
    for name, found in summary.items():
        table.add_row(name, *(f"{found[figure]:.3f}" for figure in FIGURES))
    Console().print(table)


def draw(summary: dict[str, dict[str, float]], path: Path) -> None:
    """Draw PSNR and density against speed-up."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 10), layout="constrained")
    labels = {"psnr": "PSNR against dense, dB", "density": "density of sparse calls"}
    for axes, (name, label) in zip(figure.subplots(2, sharex=True), labels.items(), strict=True):
        for setting, found in summary.items():
            place = found["speed_up"], found[name]
            axes.scatter(*place, s=18)
            axes.annotate(setting, place, (4, 2), textcoords="offset points", fontsize=7)
        axes.set(ylabel=label)
        axes.grid(visible=True, alpha=0.3)
    axes.set(xlabel="speed-up of the denoising loop")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    typer.run(main)
