"""All methods beside one another on the embedded model, on held-out prompts.

    python benchmarks/methods.py --warm-up 0.2     # one warm-up for all, as in the paper
    python benchmarks/methods.py --warm-up 0       # no dense step
    python benchmarks/methods.py --density 0.15    # those with a knob, at about equal density

Each method runs through the same backend, with its own published settings for a model like this.
Keep the machine idle; what is done is kept in the JSON, and the same command goes on from there.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from frontier import draw, held_out_prompts, print_table, run_settings, summarise

from svoo import MethodConfig, SVOOConfig, available_methods
from svoo.methods import find_method

# The settings that bring a method near a density, where it has a knob for it.
KNOBS = {
    "spargeattn": lambda density: {"topk": density},
    "svg1": lambda density: {"density": density},
    "pisa": lambda density: {"density": density},
    "clusterattention": lambda density: {"keep": density},
    "sparsepr": lambda density: {"density": density},
    "draft": lambda density: {"sparsity": 1 - density},
    "vsa": lambda density: {"sparsity": 1 - density},
    "rainfusion2": lambda density: {"sparsity": 1 - density},
    "adaspa": lambda density: {"sparsity": 1 - density},
}


def settings(warm_up: float, density: float | None) -> dict[str, MethodConfig]:
    """Return every method with one warm-up for all (dense layers: none, as there are six)."""
    tried: dict[str, MethodConfig] = {"paper": SVOOConfig.paper("mini")}
    tried |= {"fast": SVOOConfig.fast(), "balanced": SVOOConfig.balanced()}
    for row in available_methods():
        if row.name != "dense":
            tried[row.name] = find_method(row.name, "mini")
    if density is not None:
        tried = {
            name: replace(config, **KNOBS[name](density))
            for name, config in tried.items()
            if name in KNOBS
        }
    same = {"dense_steps": float(warm_up), "dense_layers": 0, "measure_recall": True}
    return {name: replace(config, **same) for name, config in tried.items()}  # type: ignore[arg-type]


def main(
    *,
    out: Annotated[Path, typer.Option(help="Where JSON and plot go.")] = Path("out/benchmarks"),
    prompts: Annotated[int, typer.Option(min=1, help="How many held-out prompts.")] = 5,
    warm_up: Annotated[float, typer.Option(help="Part of the steps that stays dense.")] = 0.2,
    density: Annotated[float | None, typer.Option(help="Methods with a knob, near this.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="A method; may be repeated.")] = None,
    steps: Annotated[int, typer.Option(help="Denoising steps of a run.")] = 20,
    height: Annotated[int, typer.Option(help="80 with --width 144 gives 2,340 tokens.")] = 144,
    width: Annotated[int, typer.Option(help="Width in pixels.")] = 256,
) -> None:
    """Run what is not done yet, then print the table and draw the plot."""
    known = settings(warm_up, density)
    for key in only or []:
        if key not in known:
            raise SystemExit(f"no method called {key!r}; there are {', '.join(known)}")
    tried = {key: config for key, config in known.items() if not only or key in only}
    name = f"methods-warm-up-{warm_up:g}" + ("" if density is None else f"-density-{density:g}")
    sizes = {"frames": 49, "steps": steps, "height": height, "width": width}
    summary = summarise(run_settings(tried, held_out_prompts(prompts), out, name, sizes))
    print_table(summary)
    draw(summary, out / f"{name}.png")


if __name__ == "__main__":
    typer.run(main)
