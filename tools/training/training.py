"""What both trainings share: averaged weights, the learning-rate curve, resume files, logs and
picture grids."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from svoo.storage import write_atomically

Fact = float | str | dict[str, int] | list[float]


def average(module: nn.Module, decay: float) -> AveragedModel:
    """Return a moving average of a module's parameters."""
    return AveragedModel(module, avg_fn=moving(decay))


def moving(decay: float) -> Callable[[Tensor, Tensor, Tensor | int], Tensor]:
    """Return how an average moves; early on faster, so that the start is forgotten."""

    def move(averaged: Tensor, value: Tensor, count: Tensor | int) -> Tensor:
        kept = min(decay, (1 + float(count)) / (10 + float(count)))
        return averaged.lerp(value.detach(), 1 - kept)

    return move


def cosine_rate(step: int, steps: int, peak: float, floor: float = 0.03) -> float:
    """Return the learning rate at a step: a cosine from `peak` down to `floor * peak`."""
    part = min(1.0, step / steps)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * part)))


def save_resume(
    path: Path,
    module: nn.Module,
    averaged: AveragedModel,
    optimisers: Sequence[torch.optim.Optimizer],
    facts: Mapping[str, Fact],
) -> None:
    """Write all that training needs to go on, whole or not at all; the moments in bfloat16 keep it
    small."""
    tensors = {
        f"averaged/{name}": value.detach() for name, value in averaged.module.named_parameters()
    }
    states = {key: state for each in optimisers for key, state in each.state.items()}
    steps = 0
    for name, value in module.named_parameters():
        tensors[f"weight/{name}"] = value.detach()
        for moment, state in states.get(value, {}).items():
            if moment == "exp_avg_sq":
                tensors[f"{moment}/{name}"] = state.sqrt().to(torch.bfloat16)
            elif moment == "step":
                steps = int(state)
            else:
                tensors[f"{moment}/{name}"] = state.to(torch.bfloat16)
    data = save(
        {name: value.contiguous() for name, value in tensors.items()},
        metadata={
            "facts": json.dumps(facts),
            "averages": str(int(averaged.n_averaged)),
            "steps": str(steps),
        },
    )
    write_atomically(path, data)


def read_facts(path: Path) -> dict[str, Any]:
    """Return what `save_resume` was told beside the tensors."""
    with safe_open(path, "pt") as file:
        facts: dict[str, Any] = json.loads(file.metadata()["facts"])
    return facts


def load_resume(
    path: Path,
    module: nn.Module,
    averaged: AveragedModel,
    optimisers: Sequence[torch.optim.Optimizer],
) -> dict[str, Any]:
    """Read what `save_resume` wrote into the objects and return its facts; parameters that are
    newer than the file stay as they begin."""
    owners = {
        value: optimiser
        for optimiser in optimisers
        for group in optimiser.param_groups
        for value in group["params"]
    }
    with safe_open(path, "pt") as file, torch.no_grad():
        averaged.n_averaged.fill_(int(file.metadata()["averages"]))
        steps = float(file.metadata()["steps"])
        averages = dict(averaged.module.named_parameters())
        moments: dict[str, dict[str, Tensor]] = {}
        for key in file.keys():  # noqa: SIM118 (a file is no dictionary)
            moment, name = key.split("/", 1)
            if moment not in ("weight", "averaged"):
                moments.setdefault(name, {})[moment] = file.get_tensor(key).float()
        stored = set(file.keys())
        for name, value in module.named_parameters():
            if f"weight/{name}" not in stored:
                continue
            value.copy_(file.get_tensor(f"weight/{name}"))
            averages[name].copy_(file.get_tensor(f"averaged/{name}"))
            if name in moments:
                state = moments[name]
                if "exp_avg_sq" in state:
                    state["exp_avg_sq"] = state["exp_avg_sq"].square()
                    state["step"] = torch.tensor(steps)
                owners[value].state[value] = state
    return read_facts(path)


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

    def write(self, **facts: float | str) -> None:
        """Write one line."""
        row = {**facts, "seconds": self.seconds}
        text = {key: round(v, 5) if isinstance(v, float) else v for key, v in row.items()}
        with self.path.open("a") as file:
            file.write(json.dumps(text) + "\n")
        os.write(1, ("  ".join(f"{key} {value}" for key, value in text.items()) + "\n").encode())


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
