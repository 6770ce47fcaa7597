"""The authors' published tables of what every head needs, read as profiles."""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from torch import Tensor

from svoo.catalogue import Model, find_model
from svoo.errors import ProfileError
from svoo.profiles.profile import PROFILE_MASS, Profile, flow_sigmas

Cell = tuple[int, int, int]  # step, layer, head, each from 0


def read_table(path: Path, model: str) -> Profile:
    """Read one of the authors' tables (Step, Layer, Head, "Sparsity"), measured at mass 0.95 on
    one prompt.

    Despite its name the column is the density. Noise levels and stages follow from the model's
    scheduler.
    """
    known = find_model(model)
    table = _fill(path, known, _read_cells(path))
    sigma = flow_sigmas(known.steps, known.flow_shift)
    stage = torch.zeros(known.steps, dtype=torch.int64)
    if known.boundary is not None:
        stage = (sigma < known.boundary).long()
    masses = torch.tensor([PROFILE_MASS], dtype=torch.float64)
    try:
        return Profile(table[None, ..., None], sigma, stage, masses, _provenance(path, known))
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from error


def _read_cells(path: Path) -> dict[Cell, float]:
    rows: list[tuple[Cell, float]] = []
    try:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                cell = int(row["Step"]) - 1, int(row["Layer"]), int(row["Head"])
                rows.append((cell, float(row["Sparsity"])))
    except OSError as error:
        raise ProfileError(f"cannot read the table {path}: {error}") from error
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise ProfileError(
            f"{path} is not a table of the authors (columns Step, Layer, Head, Sparsity): {error}"
        ) from error
    cells = dict(rows)
    if len(cells) < len(rows):
        raise ProfileError(f"{path} has {len(rows) - len(cells)} entries a second time")
    return cells


def _fill(path: Path, model: Model, cells: dict[Cell, float]) -> Tensor:
    """Return the cells as a table `[steps, layers, heads]`; refuse those of another model."""
    shape = (model.steps, model.layers, model.heads)
    table = torch.full(shape, torch.nan)
    for cell, density in cells.items():
        if any(not 0 <= index < size for index, size in zip(cell, shape, strict=True)):
            raise ProfileError(
                f"{path} has step, layer, head {cell}, but {model.name} has only {list(shape)}"
            )
        table[cell] = density
    if len(cells) < table.numel():
        raise ProfileError(
            f"{path} has {len(cells)} entries, {model.name} needs {table.numel()} ({list(shape)})"
        )
    return table


def _provenance(path: Path, model: Model) -> dict[str, str]:
    sizes = {"frames": model.frames, "height": model.height, "width": model.width}
    return {
        "model": model.name,
        "source": f"authors' table {path.name}",
        "tokens": str(model.count_tokens(**sizes)),
        **{name: str(size) for name, size in sizes.items()},
    }
