"""What both trainings share: averaged weights, the learning-rate curve, resume files, logs and
picture grids."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from svoo.storage import atomically


def average(module: nn.Module, decay: float) -> AveragedModel:
    """Return a moving average of a module's parameters; early on it moves faster, so that the
    start is forgotten."""

    def move(averaged: Tensor, value: Tensor, count: Tensor | int) -> Tensor:
        kept = min(decay, (1 + float(count)) / (10 + float(count)))
        return averaged.lerp(value.detach(), 1 - kept)

    return AveragedModel(module, avg_fn=move)


def cosine_rate(step: int, steps: int, peak: float, floor: float = 0.03) -> float:
    """Return the learning rate at a step: a cosine from `peak` down to `floor * peak`."""
    part = min(1.0, step / steps)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * part)))


def save_resume(
    path: Path,
    module: nn.Module,
    averaged: AveragedModel,
    optimiser: torch.optim.Optimizer,
    facts: Mapping[str, float],
) -> None:
    """Write all that training needs to go on, whole or not at all; the moments in bfloat16 keep it
    small."""
    tensors = {
        f"averaged/{name}": value.detach() for name, value in averaged.module.named_parameters()
    }
    for name, value in module.named_parameters():
        tensors[f"weight/{name}"] = value.detach()
        moments = optimiser.state.get(value)
        if moments:
            tensors[f"first/{name}"] = moments["exp_avg"].to(torch.bfloat16)
            tensors[f"second/{name}"] = moments["exp_avg_sq"].sqrt().to(torch.bfloat16)
    with atomically(path) as unfinished:
        save_file(
            {name: value.contiguous() for name, value in tensors.items()},
            unfinished,
            metadata={key: repr(float(value)) for key, value in facts.items()},
        )


def load_resume(
    path: Path, module: nn.Module, averaged: AveragedModel, optimiser: torch.optim.Optimizer
) -> dict[str, float]:
    """Read what `save_resume` wrote into the three objects and return its facts."""
    with safe_open(path, "pt") as file, torch.no_grad():
        names = set(file.keys())
        facts = {key: float(value) for key, value in (file.metadata() or {}).items()}
        averaged.n_averaged.fill_(int(facts["step"]))
        averages = dict(averaged.module.named_parameters())
        for name, value in module.named_parameters():
            if f"weight/{name}" not in names:  # a part that came later begins anew
                continue
            value.copy_(file.get_tensor(f"weight/{name}"))
            averages[name].copy_(file.get_tensor(f"averaged/{name}"))
            if f"first/{name}" in names:
                optimiser.state[value] = {
                    "step": torch.tensor(facts["step"]),
                    "exp_avg": file.get_tensor(f"first/{name}").float(),
                    "exp_avg_sq": file.get_tensor(f"second/{name}").float().square(),
                }
    return facts


class Log:
    """Prints a line and appends it as JSON; `seconds` are of this and all earlier runs."""

    def __init__(self, path: Path, seconds_before: float = 0.0) -> None:
        """Append to `path`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._start = time.process_time() - seconds_before

    @property
    def seconds(self) -> float:
        """CPU seconds of training so far: pauses do not count, two threads count twice."""
        return time.process_time() - self._start

    def write(self, **facts: float) -> None:
        """Write one line."""
        row = {**facts, "seconds": self.seconds}
        text = {key: round(value, 5) for key, value in row.items()}
        with self.path.open("a") as file:
            file.write(json.dumps(text) + "\n")
        os.write(1, ("  ".join(f"{key} {value:g}" for key, value in text.items()) + "\n").encode())


def save_grid(rows: list[Tensor], path: Path, columns: int = 6) -> None:
    """Save clips `[frames, 3, height, width]` in [-1, 1] as one picture: a row a clip, `columns`
    of its frames."""
    strips = []
    for clip in rows:
        picked = torch.linspace(0, len(clip) - 1, columns).round().long()
        strips.append(torch.cat(list(clip[picked]), dim=-1))
    picture = ((torch.cat(strips, dim=-2).clamp(-1, 1) + 1) * 127.5).byte()
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path)
