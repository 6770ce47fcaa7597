"""Whether `svoo estimate --calibrate` tells the truth here: the embedded model at three sizes,
dense and in paper mode, modelled and measured.

    python benchmarks/estimate.py --out out/benchmarks
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from harness import save

from svoo.app.estimate.calibrate import measure_rates
from svoo.app.estimate.estimate import Video, estimate
from svoo.catalogue import find_model
from svoo.methods import find_method
from svoo.plugin.request import Request
from svoo.plugin.run import Generator, read_materials

SIZES = ((25, 96, 160), (25, 144, 256), (49, 144, 256))  # 1,680, 4,032 and 7,488 tokens
BOUND = 0.20


def main(
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("out/benchmarks"),
    steps: Annotated[int, typer.Option(min=2)] = 5,
) -> None:
    """Time the loops and compare; keep the machine idle. Ends with code 1 beyond 20 %."""
    model = find_model("mini")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rates = measure_rates(model, device)
    itemsize = 2 if device.type == "cuda" else 4
    print(
        f"{rates.title}: attention {rates.attention:.3g}, other products {rates.linear:.3g} ",
        end="",
    )
    print(f"FLOP/s, memory {rates.bandwidth:.3g} bytes/s")
    rows: list[dict[str, Any]] = []
    for frames, height, width in SIZES:
        video = Video(model, frames, height, width, steps)
        found = estimate(video, rates, find_method("paper", "mini"), itemsize=itemsize)
        for method, modelled in (("dense", found.dense_seconds), ("paper", found.sparse_seconds)):
            measured = _measure(video, method)
            error = modelled / measured - 1
            rows.append(
                {
                    "tokens": video.tokens,
                    "method": method,
                    "modelled": modelled,
                    "measured": measured,
                    "error": error,
                }
            )
            print(
                f"{video.tokens:6d} {method:6s} modelled {modelled:8.2f} s, measured "
                f"{measured:8.2f} s, {error:+.1%}"
            )
    print(f"{save(out, 'estimate', rows)} written")
    if any(abs(row["error"]) > BOUND for row in rows):
        raise typer.Exit(1)


def _measure(video: Video, method: str) -> float:
    """Return the seconds of a denoising loop, after a short one that warms up."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profile is of another size
        request = Request(
            prompt="a red circle moves left over a checkered floor",
            out=Path(folder, "video.npy"),
            method=method,
            steps=video.steps,
            frames=video.frames,
            height=video.height,
            width=video.width,
        )
        generator = Generator(request, read_materials(request))
        generator(request)
        return float(generator(request)["seconds"]["denoising"])


if __name__ == "__main__":
    typer.run(main)
