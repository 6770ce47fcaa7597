"""What every method keeps of the same head of the embedded model, in one picture.

python benchmarks/gallery.py --out out/benchmarks
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from looking import LookConfig, look_at_video, plan_call
from matplotlib.figure import Figure
from torch import Tensor

import svoo
from svoo.app.gallery import Picture, Sight, draw_maps, draw_panel, one_head
from svoo.catalogue import find_model
from svoo.core.validate import default_scale
from svoo.methods import find_method
from svoo.mini import load

COLUMNS = 7
MODEL = find_model("mini")


def draw_gallery(shown: dict[str, Picture], path: Path) -> None:
    """Draw a panel for each method."""
    rows = math.ceil(len(shown) / COLUMNS)
    figure = Figure(figsize=(2.6 * COLUMNS, 2.95 * rows), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for axes in panels:
        axes.set_axis_off()
    for axes, (name, picture) in zip(panels, shown.items(), strict=False):
        title = f"{name}: {picture.density:.0%} of pairs, {picture.recall:.0%} of attention"
        draw_panel(axes, next(iter(picture.maps.values())))
        axes.set_title(title, fontsize=7.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, pil_kwargs={"quality": 80})


def main(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("out/benchmarks"),
    *,
    layer: Annotated[int, typer.Option(min=0, max=MODEL.layers - 1, help="From 0.")] = 2,
    head: Annotated[int, typer.Option(min=0, max=MODEL.heads - 1, help="From 0.")] = 1,
    step: Annotated[int, typer.Option(min=0, help="From 0.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps of the run.")] = 10,
) -> None:
    """Draw what all methods keep of one head at one step, each after the steps before it."""
    pipe = load()
    pipe.set_progress_bar_config(disable=True)
    names = [row.name for row in svoo.available_methods() if row.name != "dense"]
    methods: dict[str, svoo.Method] = {}
    shown: dict[str, Picture] = {}

    def look(run: svoo.Run, call: svoo.Call, query: Tensor, key: Tensor, value: Tensor) -> None:
        for name in names:
            if call.step == 0:
                methods[name] = find_method(name, "mini").always_sparse().start(run)
            decision = plan_call(methods[name], call, query, key, value)
            if call.step < step:
                continue
            if isinstance(decision, svoo.Dense):
                print(f"{name:16s} dense: {decision.reason}")
                continue
            plan = decision.plan if isinstance(decision, svoo.Corrected) else decision
            here, scale = slice(head, head + 1), default_scale(query, call.scale)
            sight = Sight(query[:1, here], key[:1, here], scale, one_head(plan, head))
            shown[name] = draw_maps(sight, pixels=256)
            print(f"{name:16s} {shown[name].density:.3f} of pairs, {shown[name].recall:.3f}")

    config = LookConfig(look=look, layers=(layer,))
    look_at_video(pipe, config, {"num_inference_steps": steps}, last_step=step)
    draw_gallery(shown, out / "gallery.jpg")


if __name__ == "__main__":
    typer.run(main)
