"""Whether `svoo estimate --calibrate` tells the truth here: the embedded model at three sizes,
dense, in paper mode and in ours, modelled before it is measured.

    python benchmarks/estimate.py --out docs/benchmarks

A few minutes on two idle cores. Ends with code 1 if one of the nine is off by more than 20 %.
`--show FILE` prints the table of an earlier run, as docs/scale.md has it.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from harness import save

from svoo.app.estimate.calibrate import measure_rates
from svoo.app.estimate.estimate import Estimate, Video, estimate
from svoo.catalogue import find_model
from svoo.methods import find_method
from svoo.plugin.load import open_pipeline
from svoo.plugin.request import Request
from svoo.plugin.run import Made, call_arguments, run_applied

SIZES = ((25, 96, 160), (25, 144, 256), (49, 144, 256))  # 1,680, 4,032 and 7,488 tokens
METHODS = ("dense", "paper", "svoo")
BOUND = 0.20
PROMPT = "a red circle moves left over a checkered floor"


def main(
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("out/benchmarks"),
    steps: Annotated[int, typer.Option(min=2)] = 10,
    repeats: Annotated[int, typer.Option(min=1, help="Loops, of which the fastest counts.")] = 2,
    show: Annotated[Path | None, typer.Option(help="Print the table of this file.")] = None,
) -> None:
    """Time the loops and compare; keep the machine idle. Ends with code 1 beyond 20 %."""
    if show is not None:
        typer.echo(table(json.loads(show.read_text())))
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows: list[dict[str, Any]] = []
    pipe = open_pipeline(Request(prompt=PROMPT, out=Path("none"), device=device.type), MODEL)
    for method in METHODS:
        modelled = _model(method, steps, device)
        for found, size in zip(modelled, SIZES, strict=True):
            rows.append(_compare(pipe, found, method, size, steps, repeats))
            typer.echo(describe(rows[-1]))
    typer.echo(f"{save(out, 'estimate', rows, bound=BOUND)} written")
    wrong = [row for row in rows if abs(row["error"]) > BOUND]
    typer.echo(
        f"PASSED: all {len(rows)} within {BOUND:.0%}"
        if not wrong
        else f"FAILED: {len(wrong)} of {len(rows)} off by more than {BOUND:.0%}"
    )
    if wrong:
        raise typer.Exit(1)


MODEL = find_model("mini")


def _model(method: str, steps: int, device: torch.device) -> list[Estimate]:
    """Return the estimates of all sizes, from rates that are timed just before."""
    config = find_method(method, MODEL.name)
    rates = measure_rates(MODEL, device, config)
    typer.echo(f"{method}: {rates}")
    itemsize = 2 if device.type == "cuda" else 4
    videos = [Video(MODEL, *size, steps) for size in SIZES]
    return [estimate(video, rates, config, itemsize=itemsize) for video in videos]


def _compare(
    pipe: object,
    found: Estimate,
    method: str,
    size: tuple[int, int, int],
    steps: int,
    repeats: int,
) -> dict[str, Any]:
    """Return modelled beside measured seconds of a denoising loop, after a short one that warms
    up."""
    frames, height, width = size
    config = find_method(method, MODEL.name)
    best: Made | None = None
    for run in range(repeats + 1):
        request = Request(
            prompt=PROMPT,
            out=Path("none"),
            steps=steps if run else 2,
            frames=frames,
            height=height,
            width=width,
        )
        arguments = call_arguments(request, MODEL) | {"output_type": "latent"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the profile is of another size
            made = run_applied(pipe, config, "auto", arguments, None)
        if run and (best is None or made.denoising < best.denoising):
            best = made
    assert best is not None  # there is at least one run
    modelled = found.dense_seconds if method == "dense" else found.sparse_seconds
    return {
        "tokens": found.tokens,
        "method": method,
        "steps": steps,
        "modelled": modelled,
        "measured": best.denoising,
        "error": modelled / best.denoising - 1,
        "density_modelled": None if method == "dense" else found.density,
        "density_measured": best.stats.density,
        "parts_modelled": found.dense_parts if method == "dense" else found.parts,
        "seconds_measured": dict(best.stats.seconds),
    }


def describe(row: dict[str, Any]) -> str:
    """Return a row as a line."""
    densities = ""
    if row["density_measured"] is not None:
        densities = (
            f", density {row['density_modelled']:.3f} modelled, {row['density_measured']:.3f}"
        )
    return (
        f"{row['tokens']:6d} {row['method']:6s} modelled {row['modelled']:8.2f} s, measured "
        f"{row['measured']:8.2f} s, {row['error']:+.1%}{densities}"
    )


def table(saved: dict[str, Any]) -> str:
    """Return a run as a Markdown table."""
    machine = saved["machine"]
    lines = [
        f"Seconds of {saved['rows'][0]['steps']} steps on {machine['cores']} cores of an "
        f"{machine['processor']}, modelled -> measured:",
        "",
        "| tokens | " + " | ".join(METHODS) + " |",
        "|---|" + "---|" * len(METHODS),
    ]
    cells = {(row["tokens"], row["method"]): row for row in saved["rows"]}
    for tokens in sorted({row["tokens"] for row in saved["rows"]}):
        found = [cells[tokens, method] for method in METHODS]
        shown = (
            f"{row['modelled']:.1f} -> {row['measured']:.1f} ({row['error']:+.0%})"
            for row in found
        )
        lines.append(f"| {tokens:,} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
