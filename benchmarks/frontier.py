"""What each setting gives and costs on the embedded model: quality and density against speed-up.

    python benchmarks/frontier.py --out out/benchmarks

Every setting generates the same prompts with the same noise as dense attention does, one prompt
after the other, all settings of a prompt in turn. Figures are medians over prompts. Keep the
machine idle: about half a minute a run on two cores. What is done is kept in `frontier.json`: the
same command goes on from there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import correlation, median
from typing import Annotated, Any

import typer
from harness import BEFORE, fingerprint, limit_instructions, machine, save
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from svoo import MethodConfig, SVOOConfig
from svoo.catalogue import find_model
from svoo.mini import load
from svoo.plugin.calibrate import MINI_PROMPTS, read_inputs, read_prompts
from svoo.plugin.trial import SPARSE_PHASES, Trial, run_trial, warm_up
from svoo.studies.run import PROMPTS

_STALE = 8  # sparse runs after which dense is timed again
_ENOUGH = 3  # runs that have an order
FIGURES = ("speed_up", "attention_speed_up", "density", "psnr", "ssim")


def settings() -> dict[str, SVOOConfig]:
    """Return the settings to try: the paper's, ours before the far field ("mean terms", with what
    was tuned on the embedded model), and ours with one change each."""
    default = SVOOConfig.for_model("mini")
    tried = {"paper": SVOOConfig.paper("mini"), "mean terms": mean_terms(), "default": default}
    tried |= {"fast": SVOOConfig.fast(), "careful": SVOOConfig.careful()}
    changes: dict[str, dict[str, Any]] = {
        "bf16 products": {"backend": "cpp-bf16"},
        "co-clusters": {"clustering": "co"},
        "labels every 2": {"recluster_every": 2},
        "labels every 4": {"recluster_every": 4},
        "branches apart": {"share_branches": False},
        "no groups": {"groups": 0},
        "first layer dense": {"dense_layers": 1},
        "first step dense": {"dense_steps": 1, "careful_start": 0.0},
        "one tolerance for all steps": {"careful_start": 0.0},
        "127 query clusters": {"query_clusters": 127},
    }
    for fineness in (2.0, 2.5, 5.0):
        changes[f"fineness {fineness:g}"] = {"fineness": fineness}
    for tolerance in (0.0045, 0.009, 0.0256):
        changes[f"tolerance {tolerance:g}"] = {"tolerance": tolerance}
    return tried | {name: replace(default, **change) for name, change in changes.items()}


def mean_terms() -> SVOOConfig:
    """Return our default before the far field, as it was tuned on the embedded model."""
    return replace(
        SVOOConfig.mean_terms(mass=0.45), dense_steps=0.0, dense_layers=0, ramp=0.5, fineness=3.5
    )


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
        "error": trial.stats.error,
        "work": trial.stats.work,
        "sparse_calls": trial.stats.sparse_calls,
        "dense_calls": trial.stats.dense_calls,
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
            help="Prompts that nothing was chosen on, never alone in a training clip, "
            "instead of the first that the profile was measured on.",
        ),
    ] = False,
    frames: Annotated[int, typer.Option(help="97 gives about 15,000 tokens.")] = 49,
    steps: Annotated[int, typer.Option(help="Denoising steps of a run.")] = 20,
    height: Annotated[int, typer.Option(help="80 with --width 144 gives 2,340 tokens.")] = 144,
    width: Annotated[int, typer.Option(help="Width in pixels.")] = 256,
    only: Annotated[list[str] | None, typer.Option(help="A setting; may be repeated.")] = None,
    name: Annotated[str, typer.Option(help="Name of the JSON.")] = "frontier",
    instructions: Annotated[
        str | None, typer.Option(help="avx2: both sides use no more, whatever the processor has.")
    ] = None,
) -> None:
    """Run what is not done yet, then print the table and draw the plot."""
    limit_instructions(instructions)
    known = settings()
    for key in only or []:
        if key not in known:
            raise SystemExit(f"no setting called {key!r}; there are {', '.join(known)}")
    tried = {key: config for key, config in known.items() if not only or key in only}
    if held_out:
        texts = held_out_prompts(prompts)
    else:
        texts = [entry["prompt"] for entry in read_inputs(MINI_PROMPTS, count=prompts)]
    sizes: dict[str, int | str] = {
        "frames": frames,
        "steps": steps,
        "height": height,
        "width": width,
        "weights": fingerprint(load()),
        "processor": str(machine()["processor"]),
    }
    if instructions is not None:
        sizes["instructions"] = instructions
    rows = wanted_rows(run_settings(tried, texts, out, name, sizes), tried, texts, sizes)
    summary = summarise(rows)
    print_table(summary)
    print_prediction(rows)
    draw(summary, out / f"{name}.png")


def held_out_prompts(count: int) -> list[str]:
    """Return prompts that were never alone in a training clip and that nothing was chosen on."""
    return read_prompts(PROMPTS)[:count]


def dense_videos(
    pipe: Any,  # noqa: ANN401 (any pipeline class)
    prompts: int,
    sizes: Mapping[str, int],
) -> Iterator[tuple[str, dict[str, Any], Trial]]:
    """Yield so many held-out prompts, the pipeline's arguments for each, and its dense video."""
    pipe.set_progress_bar_config(disable=True)
    for text in track(held_out_prompts(prompts), "held-out prompts"):
        call = find_model("mini").call_defaults | dict(sizes) | {"prompt": text}
        yield text, call, run_trial(pipe, "dense", None, call=call)


def run_settings(
    tried: Mapping[str, MethodConfig],
    texts: Sequence[str],
    out: Path,
    name: str,
    sizes: Mapping[str, int | str],
) -> list[dict[str, Any]]:
    """Run every setting on every prompt, dense first, and return the rows; those that the JSON
    has already are not run again, but those that failed are. `sizes`: frames, steps, height,
    width, the fingerprint of the weights (rows of others are dropped), the processor, and the
    instructions that both sides are limited to, if they are."""
    pipe, model = load(), find_model("mini")
    pipe.set_progress_bar_config(disable=True)
    path = out / f"{name}.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [row for row in found if row.get("weights") == sizes.get("weights")]
    if len(rows) < len(found):
        print(f"{len(found) - len(rows)} rows of {path} are of other weights: measured again")
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
            about = _facts(tried, text, sizes)
            wanted = wanted_rows(rows, tried, [text], sizes)
            done = [row["setting"] for row in wanted if "failed" not in row]
            missing = [key for key in tried if key not in done]
            if not missing:
                bar.advance(task, len(tried) + 1)
                continue
            if not warm:
                warm_up(pipe, call)
                warm = True
            dense = run_trial(pipe, "dense", None, call=call)
            bar.advance(task, 1 + len(done))
            for number, key in enumerate(missing, start=1):
                if number % _STALE == 0:  # the machine may have changed its pace
                    dense = run_trial(pipe, "dense", None, call=call)
                try:
                    trial = run_trial(pipe, key, tried[key], call=call, against=dense)
                    figures = figures_of(trial, dense)
                    if not math.isfinite(figures["psnr"]):
                        raise ArithmeticError(f"the video's PSNR is {figures['psnr']}")
                except Exception as error:  # noqa: BLE001 (hours of other settings wait behind it)
                    figures = {"failed": describe_failure(error)}
                    bar.console.print(f"{key}: {figures['failed']}")
                rows[:] = [row for row in rows if about[key] != _same_facts(row, about[key])]
                rows.append({**about[key], **figures, "commit": BEFORE["commit"]})
                save(out, name, rows)
                bar.advance(task)
    return rows


def count_runs(settings: int, prompts: int) -> int:
    """Return how many videos `run_settings` makes, the dense ones among them too."""
    return prompts * (settings + 1 + settings // _STALE)


def describe_failure(error: Exception) -> str:
    """Return the error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def _facts(
    tried: Mapping[str, MethodConfig], text: str, sizes: Mapping[str, int | str]
) -> dict[str, dict[str, Any]]:
    """Return what makes a row one of a setting on a prompt, by setting."""
    return {
        key: {"prompt": text, "setting": key, "instructions": None, **sizes}
        | {"config": json.loads(json.dumps(config.as_dict()))}
        for key, config in tried.items()
    }


def wanted_rows(
    rows: Sequence[dict[str, Any]],
    tried: Mapping[str, MethodConfig],
    texts: Sequence[str],
    sizes: Mapping[str, int | str],
) -> list[dict[str, Any]]:
    """Return the rows of these settings, prompts and sizes: a row of another run under the same
    name is not taken for one of this."""
    facts = [fact for text in texts for fact in _facts(tried, text, sizes).values()]
    return [row for fact in facts for row in rows if fact == _same_facts(row, fact)]


def _same_facts(row: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row.get(name) for name in facts}


def summarise(
    rows: list[dict[str, Any]], figures: Sequence[str] = FIGURES
) -> dict[str, dict[str, float]]:
    """Return the median over prompts of every figure, by setting; of those that ran at all."""
    rows = [row for row in rows if "failed" not in row]
    names = dict.fromkeys(row["setting"] for row in rows)
    return {
        name: {
            figure: median(row[figure] for row in rows if row["setting"] == name)
            for figure in figures
        }
        for name in names
    }


def free_attention(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return what the loop's speed-up would be if attention were free, the median over runs whose
    calls cost the same at every step."""
    found = []
    for row in rows:
        if row["sparse_calls"] and not row["config"].get("ramp"):
            calls = (row["sparse_calls"] + row["dense_calls"]) / row["sparse_calls"]
            sparse = sum(row[f"seconds_{phase}"] for phase in SPARSE_PHASES) * calls
            dense = row["attention_speed_up"] * sparse
            found.append(row["dense_denoising"] / (row["dense_denoising"] - dense))
    return float(median(found))


def print_table(summary: dict[str, dict[str, float]]) -> None:
    """Print a row for every setting."""
    table = Table("setting", *FIGURES)
    for name, found in summary.items():
        table.add_row(name, *(f"{found[figure]:.3f}" for figure in FIGURES))
    Console().print(table)


def print_prediction(rows: list[dict[str, Any]]) -> None:
    """Print how well the error that a run measures by itself ranks the PSNR that only a dense run
    can tell."""
    words = describe_order(rows)
    if words:
        Console().print(f"stats().error against PSNR {words}")


def describe_order(rows: Sequence[dict[str, Any]]) -> str:
    """Return how well errors rank PSNR in words; none where too few runs measure errors."""
    known = [row for row in rows if row.get("error") and "psnr" in row]
    if len(known) < _ENOUGH:
        return ""
    words = (
        f"over {len(known)} runs: Spearman {rank_correlation(known):.2f} (-1: it tells the order)"
    )
    for name, others in (("prompt", "settings"), ("setting", "prompts")):
        found = correlations_within(known, name)
        if found:
            words += f"; over the {others} of one {name} {median(found):.2f} (median)"
    return words


def correlations_within(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    """Return the rank correlation of the rows of each prompt, or setting, that has enough."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        alike.setdefault(row[name], []).append(row)
    return [rank_correlation(group) for group in alike.values() if len(group) >= _ENOUGH]


def rank_correlation(rows: Sequence[dict[str, Any]]) -> float:
    """Return Spearman's correlation of error and PSNR; 0 where either is the same in all rows."""
    ranks = [_ranks([row[figure] for row in rows]) for figure in ("error", "psnr")]
    if any(len(set(own)) == 1 for own in ranks):
        return 0.0
    return correlation(ranks[0], ranks[1])


def _ranks(numbers: Sequence[float]) -> list[float]:
    ordered = sorted(numbers)  # equal numbers share the mean of their ranks
    return [ordered.index(x) + (ordered.count(x) - 1) / 2 for x in numbers]


def draw(summary: dict[str, dict[str, float]], path: Path) -> None:
    """Draw PSNR and density against speed-up."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 10), layout="constrained")
    labels = {"psnr": "PSNR against dense, dB", "density": "density of sparse calls"}
    for axes, (name, label) in zip(figure.subplots(2, sharex=True), labels.items(), strict=True):
        for setting, found in summary.items():
            point = found["speed_up"], found[name]
            axes.scatter(*point, s=18)
            axes.annotate(setting, point, (4, 2), textcoords="offset points", fontsize=7)
        axes.set(ylabel=label)
        axes.grid(visible=True, alpha=0.3)
    axes.set(xlabel="speed-up of the denoising loop")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    typer.run(main)
