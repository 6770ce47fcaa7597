"""The demo: one prompt and seed, dense, in the paper's mode and in ours, to be seen side by
side."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svoo.app.density_map import draw_density
from svoo.catalogue import find_model
from svoo.methods.svoo.config import SVOOConfig
from svoo.metrics.video import write_video
from svoo.mini.pipeline import load
from svoo.plugin.machine import describe_machine
from svoo.plugin.trial import Trial, run_trial, warm_up
from svoo.storage import write_atomically

MODES = ("dense", "paper", "default")
_LABEL_ROWS = 16
_SHOWN = 5  # frames of the strip


def run_modes(
    prompt: str,
    *,
    seed: int = 0,
    on_step: Callable[[str, int, int], None] | None = None,
    **sizes: int,
) -> list[Trial]:
    """Generate the prompt with the embedded model in every mode; `on_step(mode, done, total)`."""
    pipe, model = load(), find_model("mini")
    pipe.set_progress_bar_config(disable=True)
    configs = (None, SVOOConfig.paper(model.name), SVOOConfig.for_model(model.name))
    call = {"prompt": prompt, **model.call_defaults, **sizes}
    warm_up(pipe, call)
    trials: list[Trial] = []
    for number, (name, config) in enumerate(zip(MODES, configs, strict=True)):

        def report(done: int, steps: int, name: str = name, number: int = number) -> None:
            if on_step is not None:
                on_step(name, number * steps + done, len(MODES) * steps)

        trials.append(
            run_trial(
                pipe,
                name,
                None if config is None else replace(config, measure_recall=True),
                call=call,
                seed=seed,
                against=trials[0] if trials else None,
                on_step=report,
            )
        )
    return trials


def write_results(
    trials: Sequence[Trial], prompt: str, out: Path, *, seed: int = 0, **sizes: int
) -> Path:
    """Write videos, pictures, figures and the page into a folder; return the page's path.

    `seed` and `sizes` are those that `run_modes` was given: what is needed to repeat it.
    """
    out.mkdir(parents=True, exist_ok=True)
    for trial in trials:
        write_video(trial.frames, out / f"{trial.name}.mp4")
    write_video(side_by_side(trials), out / "side-by-side.mp4")
    write_atomically(out / "strip.png", draw_strip(trials))
    picture = draw_density({trial.name: trial.stats for trial in trials})
    write_atomically(out / "density.png", picture)
    results = {
        "prompt": prompt,
        "seed": seed,
        **sizes,
        "machine": describe_machine(),
        "modes": [figures(trial, trials[0]) for trial in trials],
    }
    text = json.dumps(results, indent=1, allow_nan=False)
    write_atomically(out / "results.json", (text + "\n").encode())
    write_atomically(out / "index.html", _page(trials, results, picture, out).encode())
    return out / "index.html"


def figures(trial: Trial, dense: Trial) -> dict[str, Any]:
    """Return one row of the table; None stands for what is not known or not finite (the PSNR of
    equal videos)."""
    alike = trial.likeness
    psnr = None if alike is None or math.isinf(alike.psnr) else alike.psnr
    return {
        "mode": trial.name,
        "config": trial.config.as_dict(),
        "denoising_seconds": trial.denoising,
        "total_seconds": trial.total,
        "speed_up": dense.denoising / trial.denoising,
        "speed_up_end_to_end": dense.total / trial.total,
        "attention_speed_up": dense.attention / trial.attention,
        "density": trial.density,
        "recall": None if math.isnan(trial.recall) else trial.recall,
        "psnr": psnr,
        "ssim": None if alike is None else alike.ssim,
        "lpips": None if alike is None else alike.lpips,
        "why_no_lpips": None if alike is None else alike.why_no_lpips,
        "seconds_by_phase": trial.stats.seconds,
        "density_by_layer_and_head": [row.density_by_head for row in trial.stats.layers],
    }


def side_by_side(trials: Sequence[Trial]) -> NDArray[np.float32]:
    """Return the videos beside each other, each under its name."""
    parts = []
    for trial in trials:
        label = _write_label(trial.name, trial.frames.shape[2])
        above = np.broadcast_to(label, (len(trial.frames), *label.shape))
        parts.append(np.concatenate([above, trial.frames], axis=1))
    return np.concatenate(parts, axis=2)


def draw_strip(trials: Sequence[Trial]) -> bytes:
    """Return a PNG with five frames of each video, from the first to the last, under its name."""
    from PIL import Image

    rows = []
    for trial in trials:
        shown = np.linspace(0, len(trial.frames) - 1, min(_SHOWN, len(trial.frames))).round()
        row = np.concatenate([trial.frames[int(frame)] for frame in shown], axis=1)
        rows += [_write_label(trial.name, row.shape[1]), row]
    pixels = (np.concatenate(rows).clip(0, 1) * 255).round().astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return file.getvalue()


def _write_label(name: str, width: int) -> NDArray[np.float32]:
    """Return white words on black, `[rows, width, 3]` from 0 to 1."""
    from PIL import Image, ImageDraw

    label = Image.new("RGB", (width, _LABEL_ROWS), "black")
    ImageDraw.Draw(label).text((4, 2), name, fill="white")
    return np.asarray(label, dtype=np.float32) / np.float32(255)


def _page(trials: Sequence[Trial], results: dict[str, Any], picture: bytes, out: Path) -> str:
    from jinja2 import Environment, PackageLoader, select_autoescape

    def embed(data: bytes) -> str:
        return base64.b64encode(data).decode()

    pages = Environment(loader=PackageLoader("svoo.app"), autoescape=select_autoescape())
    videos = {trial.name: embed((out / f"{trial.name}.mp4").read_bytes()) for trial in trials}
    return pages.get_template("demo.html").render(
        results=results, videos=videos, picture=embed(picture)
    )
