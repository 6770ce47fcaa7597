"""What recording a profile costs, and how sure its entries are, at the defaults.

    python benchmarks/profiling.py --out out/benchmarks

Dense runs of the embedded model with and without recording take turns, and in being the first;
keep the machine idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from harness import gate, interleave, save
from rich.console import Console

from svoo import Profile, record_profile, required_density
from svoo.app.inspection import spread
from svoo.catalogue import find_model
from svoo.core.density import DensityEstimate
from svoo.core.random import seeded
from svoo.mini import load
from svoo.plugin.calibrate import MINI_PROMPTS, read_inputs
from svoo.plugin.record import EVERY, MASSES, ROWS


def main(
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("out/benchmarks"),
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps of a run.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each kind.")] = 4,
    rows: Annotated[int, typer.Option(min=1, help="Sampled rows of a head.")] = ROWS,
    every: Annotated[int, typer.Option(min=1, help="Measure every so many steps.")] = EVERY,
) -> None:
    """Time recording against running, then say the standard errors."""
    pipe, model = load(), find_model("mini")
    pipe.set_progress_bar_config(disable=True)
    call: dict[str, Any] = {**model.call_defaults, "num_inference_steps": steps}
    prompts = [entry["prompt"] for entry in read_inputs(MINI_PROMPTS, count=repeats)]
    seconds: dict[str, list[float]] = {"dense": [], "recording": []}
    profiles: list[Profile] = []
    kinds: dict[str, Callable[[str], object]] = {
        "dense": lambda prompt: pipe(prompt, output_type="latent", **call),
        "recording": lambda prompt: profiles.append(
            record_profile(pipe, [prompt], rows=rows, every=every, **call)
        ),
    }
    kinds["dense"](prompts[0])  # warm up
    for index, prompt in enumerate(prompts):
        for kind in sorted(kinds, reverse=index % 2 == 1):
            start = time.perf_counter()
            kinds[kind](prompt)
            seconds[kind].append(time.perf_counter() - start)
    dense, recording = median(seconds["dense"]), median(seconds["recording"])
    error = spread(Profile.merge(profiles)).sampling
    assert error is not None
    about = pipe.transformer.config
    bins, sorting = time_measuring(rows, about.num_attention_heads, about.attention_head_dim)
    calls = len(range(0, steps, every)) * model.layers  # equal runs may differ by more than these
    row = {
        "rows": rows,
        "every": every,
        "steps": steps,
        "inputs": len(prompts),
        "dense_seconds": dense,
        "recording_seconds": recording,
        "cost_percent": 100 * (recording / dense - 1),
        "cost_by_calls_percent": 100 * calls * bins / dense,
        "bins_seconds": bins,
        "sorting_seconds": sorting,
        "error_of_entry": error.entry,
        "worst_error_of_entry": error.worst_entry,
        "error_of_head_mean": error.head,
        "worst_error_of_head_mean": error.worst_head,
    }
    save(out, "profiling", [row])
    Console().print(
        f"a dense run takes {dense:.1f} s, recording it with {rows} rows {recording:.1f} s "
        f"({row['cost_percent']:+.1f} %; {row['cost_by_calls_percent']:.1f} % by its calls); "
        f"standard error of an entry {error.entry:.4f} (at most "
        f"{error.worst_entry:.4f}), of a head's mean over {steps} steps {error.head:.4f} (at most "
        f"{error.worst_head:.4f}); counting in bins takes {1e3 * bins:.0f} ms a call where "
        f"sorting takes {1e3 * sorting:.0f}",
        highlight=False,
    )


def time_measuring(rows: int, heads: int, size: int) -> tuple[float, float]:
    """Return the seconds of a layer's measurement by counting in bins and by sorting."""
    query, key = (torch.randn(1, heads, 7488, size, generator=seeded(i)) for i in (0, 1))

    def measure(*, exact: bool) -> DensityEstimate:
        return required_density(query, key, mass=MASSES, rows=rows, exact=exact)

    gate("counting in bins", measure(exact=False).value, measure(exact=True).value, 1e-2)
    seconds = interleave(
        {"bins": lambda: measure(exact=False), "sorting": lambda: measure(exact=True)}, 5
    )
    return seconds["bins"], seconds["sorting"]


if __name__ == "__main__":
    typer.run(main)
