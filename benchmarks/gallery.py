"""What every method keeps of the same head of the embedded model, in one picture.

python benchmarks/gallery.py --out out/benchmarks
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import torch
import typer
from matplotlib.figure import Figure
from torch import Tensor

import svoo
from svoo.app.gallery import Picture, Sight, draw_maps, draw_panel, one_head
from svoo.core.validate import default_scale
from svoo.methods import find_method
from svoo.mini.pipeline import load

PROMPT = "a red circle moves left over a checkered floor"
COLUMNS = 5


@dataclass(frozen=True, kw_only=True)
class RecorderConfig(svoo.MethodConfig):
    """Dense everywhere; remembers the tokens of one layer of the first branch, step by step."""

    name: ClassVar[str] = "recorder"

    layer: int
    found: list[tuple[svoo.Call, Tensor, Tensor, Tensor]] = field(default_factory=list)

    def start(self, run: svoo.Run) -> svoo.Method:  # noqa: ARG002
        """Return the method for a new video."""
        return _Recorder(self)


class _Recorder:
    state_bytes = 0

    def __init__(self, config: RecorderConfig) -> None:
        self.config = config

    def plan(self, query: Tensor, key: Tensor, value: Tensor, call: svoo.Call) -> svoo.Dense:
        seen = [before for before, *_ in self.config.found]
        if call.layer == self.config.layer and len(seen) == call.step:
            tokens = [side[:1].clone() for side in (query, key, value)]
            self.config.found.append((call, tokens[0], tokens[1], tokens[2]))
        return svoo.Dense("recording", planned=True)


def picture_of(
    name: str, calls: list[tuple[svoo.Call, Tensor, Tensor, Tensor]], steps: int, head: int
) -> Picture | None:
    """Run a method over the recorded steps; what it keeps at the last, None if that is dense."""
    method = (
        find_method(name, "mini").always_sparse().start(svoo.Run(steps=steps, layers=6, heads=4))
    )
    decision: svoo.BlockPlan | svoo.Corrected | svoo.Dense = svoo.Dense("nothing recorded")
    with torch.no_grad():
        for call, query, key, value in calls:
            decision = method.plan(
                query, key, value, svoo.Call(call.step, call.layer, call.layout)
            )
    if isinstance(decision, svoo.Dense):
        print(f"{name:16s} dense: {decision.reason}")
        return None
    plan = decision.plan if isinstance(decision, svoo.Corrected) else decision
    here = slice(head, head + 1)
    query, key = calls[-1][1], calls[-1][2]
    scale = default_scale(query, None)
    found = draw_maps(Sight(query[:, here], key[:, here], scale, one_head(plan, head)), pixels=256)
    print(f"{name:16s} density {found.density:.3f} recall {found.recall:.3f}")
    return found


def main(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("out/benchmarks"),
    *,
    layer: int = 2,
    head: int = 1,
    step: int = 5,
    steps: int = 10,
) -> None:
    """Draw the gallery."""
    pipe = load()
    pipe.set_progress_bar_config(disable=True)
    recorder = RecorderConfig(layer=layer)
    with svoo.apply(pipe, recorder):
        pipe(
            PROMPT,
            num_inference_steps=steps,
            generator=torch.Generator().manual_seed(0),
            output_type="latent",
            max_sequence_length=32,
            callback_on_step_end=stop_after(step),
        )
    calls = recorder.found[: step + 1]
    names = [row.name for row in svoo.available_methods() if row.name != "dense"]
    pictures = {name: picture_of(name, calls, steps, head) for name in names}
    shown = {name: picture for name, picture in pictures.items() if picture is not None}
    rows = math.ceil(len(shown) / COLUMNS)
    figure = Figure(figsize=(2.6 * COLUMNS, 2.95 * rows), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for axes in panels:
        axes.set_axis_off()
    for axes, (name, picture) in zip(panels, shown.items(), strict=False):
        title = f"{name}: {picture.density:.0%} of pairs, {picture.recall:.0%} of attention"
        draw_panel(axes, next(iter(picture.maps.values())))
        axes.set_title(title, fontsize=7.5)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "gallery.jpg", dpi=90, pil_kwargs={"quality": 80})


def stop_after(last: int) -> object:
    """Return a callback that ends the loop after a step."""

    def callback(pipe: object, step: int, _timestep: object, state: dict[str, object]) -> object:
        if step >= last:
            pipe._interrupt = True  # type: ignore[attr-defined]  # diffusers' own way
        return state

    return callback


if __name__ == "__main__":
    typer.run(main)
