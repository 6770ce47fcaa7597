"""What interception costs when nothing is made sparse: forwards of the embedded model's
transformer.

    python benchmarks/intercept.py --out out/benchmarks
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from harness import gate, interleave, save
from rich.console import Console
from torch import Tensor

from svoo import apply
from svoo.core.random import seeded
from svoo.mini import load


def main(
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("out/benchmarks"),
    repeats: Annotated[int, typer.Option(min=1)] = 15,
) -> None:
    """Time plain and intercepted forwards of 4,032 tokens in turns; keep the machine idle."""
    plain, taken = load().transformer, load().transformer
    handle = apply(taken, method="dense")
    latents = torch.randn(1, 16, 7, 18, 32, generator=seeded(0))
    text = torch.randn(1, 32, 64, generator=seeded(1))

    @torch.no_grad()
    def forward(model: torch.nn.Module) -> Tensor:
        output: Tensor = model(
            latents, timestep=torch.tensor([500.0]), encoder_hidden_states=text, return_dict=False
        )[0]
        return output

    handle.set_step(0, 20)
    gate("the intercepted forward", forward(taken), forward(plain), 0.0)
    row = interleave({"plain": lambda: forward(plain), "taken": lambda: forward(taken)}, repeats)
    overhead = row["taken"] / row["plain"] - 1
    console = Console()
    console.print(
        f"4,032 tokens, {plain.config.num_layers} layers: plain {row['plain']:.3f} s, "
        f"intercepted {row['taken']:.3f} s, overhead {overhead:.1%}"
    )
    path = save(out, "intercept", [{"tokens": 4032, **row, "overhead": overhead}])
    console.print(f"{path} written")


if __name__ == "__main__":
    typer.run(main)
