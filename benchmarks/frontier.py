"""What each setting gives and costs on the embedded model: quality and density against speed-up.

    python benchmarks/frontier.py --out out/benchmarks

Every setting generates the same prompts with the same noise as dense attention does, one prompt
after the other, all settings of a prompt in turn. Figures are medians over prompts. Keep the
machine idle: about half a minute a run on two cores, so some 45 minutes in all. What is done is
kept in `frontier.json`: the same command goes on from there.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from harness import save
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from svoo import SVOOConfig
from svoo.catalogue import find_model
from svoo.mini import load
from svoo.plugin.calibrate import MINI_PROMPTS, read_inputs
from svoo.plugin.trial import Trial, run_trial

FIGURES = ("speed_up", "attention_speed_up", "density", "psnr", "ssim")


def settings() -> dict[str, SVOOConfig]:
    """Return the settings to try: the paper's, and one or two changes at a time to a centre."""
    base = replace(
        SVOOConfig.for_model("mini"),
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
    for warm_up in (0.0, 0.2):
        changes[f"warm-up {warm_up}"] = {"dense_steps": warm_up}
    changes["warm-up 0.0, ramp 0.3"] = {"dense_steps": 0.0, "ramp": 0.3}
    changes["warm-up 0.0, ramp 0.3, fineness 3.5"] = {
        "dense_steps": 0.0,
        "ramp": 0.3,
        "fineness": 3.5,
    }
    changes["warm-up 0.0, ramp 0.5, fineness 3.5, iterations 2"] = {
        "dense_steps": 0.0,
        "ramp": 0.5,
        "fineness": 3.5,
        "iterations": 2,
    }
    changes["branches apart"] = {"share_branches": False}
    changes["iterations 2"] = {"iterations": 2}
    for fineness in (2.0, 6.0):
        changes[f"fineness {fineness:.0f}"] = {"fineness": fineness}
    tried = {name: replace(base, **change) for name, change in changes.items()}
    return {"paper": SVOOConfig.paper("mini"), **tried}


def figures_of(trial: Trial, dense: Trial) -> dict[str, float]:
    """Return what is compared."""
    assert trial.likeness is not None
    return {
        "speed_up": dense.denoising / trial.denoising,
        "attention_speed_up": dense.attention / trial.attention,
        "density": trial.density,
        "psnr": trial.likeness.psnr,
        "ssim": trial.likeness.ssim,
        "denoising": trial.denoising,
        "dense_denoising": dense.denoising,
        **{f"seconds_{phase}": value for phase, value in trial.stats["seconds"].items()},
    }


def main(
    out: Annotated[Path, typer.Option()] = Path("out/benchmarks"),
    prompts: Annotated[int, typer.Option(help="How many of the model's own prompts.")] = 5,
    frames: Annotated[int, typer.Option(help="97 gives about 15,000 tokens.")] = 49,
    steps: Annotated[int, typer.Option(help="Denoising steps of a run.")] = 20,
    only: Annotated[list[str] | None, typer.Option(help="A setting; may be repeated.")] = None,
    name: Annotated[str, typer.Option(help="Name of the JSON.")] = "frontier",
) -> None:
    """Run what is not done yet, then print the table and draw the plot."""
    pipe, model = load(), find_model("mini")
    pipe.set_progress_bar_config(disable=True)
    tried = {key: config for key, config in settings().items() if not only or key in only}
    path = out / f"{name}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    done = {(row["prompt"], row["setting"]) for row in rows}
    inputs = read_inputs(MINI_PROMPTS, count=prompts)
    with Progress() as bar:
        task = bar.add_task("running", total=len(inputs) * (len(tried) + 1))
        for entry in inputs:
            call = {
                **entry,
                **model.call_defaults,
                "num_frames": frames,
                "num_inference_steps": steps,
            }
            missing = [key for key in tried if (entry["prompt"], key) not in done]
            if not missing:
                bar.advance(task, len(tried) + 1)
                continue
            dense = run_trial(pipe, "dense", None, call=call)
            bar.advance(task)
            for key in missing:
                trial = run_trial(pipe, key, tried[key], call=call, against=dense)
                rows.append(
                    {
                        "prompt": entry["prompt"],
                        "setting": key,
                        "frames": frames,
                        "steps": steps,
                        "config": vars(tried[key]),
                        **figures_of(trial, dense),
                    }
                )
                save(out, name, rows)
                bar.advance(task)
    summary = summarise(rows)
    default = SVOOConfig.for_model("mini")
    marked = next((key for key, config in settings().items() if config == default), "")
    print_table(summary, marked)
    draw(summary, out / f"{name}.png")


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


def print_table(summary: dict[str, dict[str, float]], default: str) -> None:
    """Print a row for every setting, and say which is the default."""
    table = Table("setting", *FIGURES)
    for name, found in summary.items():
        shown = f"{name} (default)" if name == default else name
        table.add_row(shown, *(f"{found[figure]:.3f}" for figure in FIGURES))
    Console().print(table)


def draw(summary: dict[str, dict[str, float]], path: Path) -> None:
    """Draw PSNR against speed-up."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for name, found in summary.items():
        axes.scatter(found["speed_up"], found["psnr"], s=18)
        axes.annotate(
            name, (found["speed_up"], found["psnr"]), fontsize=7, xytext=(4, 2),
            textcoords="offset points",
        )  # fmt: skip
    axes.set(xlabel="speed-up of the denoising loop", ylabel="PSNR against dense, dB")
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    typer.run(main)
