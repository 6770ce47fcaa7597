"""What recording a profile costs, and how sure its entries are, at the defaults.

    python benchmarks/profiling.py --out out/benchmarks

Dense runs of the embedded model with and without recording take turns; keep the machine idle.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from harness import gate, interleave, save
from rich.console import Console

from svoo import record_profile, required_density
from svoo.catalogue import find_model
from svoo.checks import seeded
from svoo.density import DensityEstimate
from svoo.inspection import spread
from svoo.mini import load
from svoo.plugin.calibrate import MINI_PROMPTS, read_inputs
from svoo.plugin.recorder import MASSES, ROWS


def main(
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("out/benchmarks"),
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps of a run.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each kind.")] = 3,
    rows: Annotated[int, typer.Option(min=1, help="Sampled rows of a head.")] = ROWS,
    every: Annotated[int, typer.Option(min=1, help="Measure every so many steps.")] = 1,
) -> None:
    """Time recording against running, then say the standard errors."""
    pipe, model = load(), find_model("mini")
    pipe.set_progress_bar_config(disable=True)
    call: dict[str, Any] = {**model.call_defaults, "num_inference_steps": steps}
    prompts = [entry["prompt"] for entry in read_inputs(MINI_PROMPTS, count=repeats)]
    plain, recorded, errors = [], [], []
    for prompt in prompts:
        start = time.perf_counter()
        pipe(prompt, output_type="latent", **call)
        plain.append(time.perf_counter() - start)
        start = time.perf_counter()
        profile = record_profile(pipe, [prompt], rows=rows, every=every, **call)
        recorded.append(time.perf_counter() - start)
        errors.append(spread(profile))
    cost = median(recorded) / median(plain) - 1
    bins, sorting = time_measuring(rows)
    row = {
        "rows": rows,
        "every": every,
        "steps": steps,
        "dense_seconds": median(plain),
        "recording_seconds": median(recorded),
        "cost": cost,
        "bins_seconds": bins,
        "sorting_seconds": sorting,
        "error_of_entry": median(found.sampling for found in errors),
        "error_of_head_mean": median(found.sampling_of_mean for found in errors),
    }
    save(out, "profiling", [row])
    Console().print(
        f"a dense run takes {median(plain):.1f} s, recording it {median(recorded):.1f} s "
        f"({cost:+.1%}); standard error of an entry {row['error_of_entry']:.4f}, of a head's mean "
        f"over {steps} steps {row['error_of_head_mean']:.4f}; counting in bins takes "
        f"{1e3 * bins:.0f} ms a call where sorting takes {1e3 * sorting:.0f}",
        highlight=False,
    )


def time_measuring(rows: int) -> tuple[float, float]:
    """Return the seconds of a layer's measurement by counting in bins and by sorting."""
    query, key = (torch.randn(1, 4, 7488, 32, generator=seeded(i)) for i in (0, 1))

    def measure(*, exact: bool) -> DensityEstimate:
        return required_density(query, key, mass=MASSES, rows=rows, exact=exact)

    gate("counting in bins", measure(exact=False).value, measure(exact=True).value, 1e-2)
    seconds = interleave(
        {"bins": lambda: measure(exact=False), "sorting": lambda: measure(exact=True)}, 5
    )
    return seconds["bins"], seconds["sorting"]


if __name__ == "__main__":
    typer.run(main)
