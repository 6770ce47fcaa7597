"""What the planning of every method costs, as a share of a dense call on the same tokens.

    python benchmarks/planning.py                      # 7,488 tokens, 20 steps, no warm-up
    python benchmarks/planning.py --only sol --only vmoba

A dense video of the embedded model runs; in some layers every method plans every call, in turn
with torch's dense attention. CPU time on one thread is compared, so other work on the machine
hardly shows. "first" is a layer's first call in the run, "later" the mean of all others (a search
at a later step is one of them), "run" the mean of all, which shall be below 10 %.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from statistics import mean, median
from typing import Annotated

import torch
import typer
from harness import save
from looking import LookConfig, look_at_video, plan_call
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import svoo
from svoo.catalogue import find_model
from svoo.methods import find_method
from svoo.mini import load

DENSE = "dense"


def methods_to_plan(only: list[str]) -> dict[str, svoo.MethodConfig]:
    """Return the methods with their settings for the embedded model, without any warm-up."""
    names = [row.name for row in svoo.available_methods() if row.name != DENSE]
    for name in only:
        if name not in names:
            raise SystemExit(f"no method called {name!r}; there are {', '.join(names)}")
    return {name: find_method(name, "mini").always_sparse() for name in only or names}


class Clock:
    """Plans every call that it is shown by every method, and notes the CPU seconds of each."""

    def __init__(self, configs: dict[str, svoo.MethodConfig]) -> None:
        """Begin with nothing noted."""
        self.configs = configs
        self.dense: list[float] = []
        self.seconds: dict[str, dict[int, list[float]]] = {  # by method and layer
            name: defaultdict(list) for name in configs
        }
        self.tokens = 0
        self._methods: dict[str, svoo.Method] = {}

    def look(
        self, run: svoo.Run, call: svoo.Call, query: Tensor, key: Tensor, value: Tensor
    ) -> None:
        """Plan one call by all methods, a dense call before each third of them."""
        self.tokens = query.shape[2]
        if not self._methods:
            self._methods = {name: config.start(run) for name, config in self.configs.items()}
            scaled_dot_product_attention(query, key, value)  # asks for its memory
        for number, (name, method) in enumerate(self._methods.items()):
            if number % max(1, len(self._methods) // 3) == 0:
                start = time.process_time()
                scaled_dot_product_attention(query, key, value)
                self.dense.append(time.process_time() - start)
            start = time.process_time()
            plan_call(method, call, query, key, value)
            self.seconds[name][call.layer].append(time.process_time() - start)

    def shares(self) -> list[dict[str, float | str]]:
        """Return the shares of a dense call, by method: first calls, later ones, all."""
        dense = median(self.dense)
        rows: list[dict[str, float | str]] = []
        for name, layers in self.seconds.items():
            first = [taken[0] for taken in layers.values()]
            later = [seconds for taken in layers.values() for seconds in taken[1:]]
            parts = {"first": first, "later": later, "run": first + later}
            rows.append(
                {"method": name}
                | {part: mean(taken or [0.0]) / dense for part, taken in parts.items()}
            )
        return rows


def main(
    *,
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("out/benchmarks"),
    only: Annotated[list[str] | None, typer.Option(help="A method; may be repeated.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps of the run.")] = 20,
    last_step: Annotated[
        int | None, typer.Option(min=0, help="Stop after this step, counted from 0.")
    ] = None,
    layer: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            max=find_model("mini").layers - 1,
            help="Whose calls are planned; may be repeated. [default: 0-2]",
        ),
    ] = None,
    height: Annotated[int, typer.Option(help="80 with --width 144 gives 2,340 tokens.")] = 144,
    width: Annotated[int, typer.Option(help="Width in pixels.")] = 256,
) -> None:
    """Plan calls by every method, then print the table."""
    layers = layer or [0, 1, 2]  # vmoba's three partitions take turns
    torch.set_num_threads(1)
    clock = Clock(methods_to_plan(only or []))
    pipe = load()
    pipe.set_progress_bar_config(disable=True)
    calls = 2 * len(layers) * min(steps, steps if last_step is None else last_step + 1)
    with Progress() as bar:
        task = bar.add_task("planning", total=calls)

        def look(
            run: svoo.Run, call: svoo.Call, query: Tensor, key: Tensor, value: Tensor
        ) -> None:
            clock.look(run, call, query, key, value)
            bar.advance(task)

        config = LookConfig(look=look, layers=layers, branches=("cond", "uncond"))
        sizes = {"num_frames": 49, "num_inference_steps": steps, "height": height, "width": width}
        look_at_video(pipe, config, sizes, last_step=last_step)
    rows = clock.shares()
    table = Table(title=f"planning at {clock.tokens:,} tokens, % of the CPU time of a dense call")
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, *shares in (row.values() for row in rows):
        table.add_row(str(name), *(f"{100 * float(share):.1f}" for share in shares))
    Console().print(table)
    path = save(out, "planning", rows, tokens=clock.tokens, steps=steps, layers=layers)
    print(f"{path} written")


if __name__ == "__main__":
    typer.run(main)
