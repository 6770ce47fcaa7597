"""What the studies of required density share: one measurement per prompt, read back as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svoo.studies.base import Job, per_input
from svoo.studies.lab import Lab
from svoo.studies.results import Results


def density_jobs(lab: Lab, field: str) -> list[Job]:
    """Return one job per input: its densities, `field` of what `Lab.densities` finds."""
    size = lab.scale.small

    def make(entry: Mapping[str, Any]) -> dict[str, Any]:
        found = lab.densities(entry, size)
        shown = {name: found[name] for name in (field, "sigma")}
        return {"prompt": entry["prompt"], "tokens": lab.tokens(size), **shown}

    return per_input(lab, size, make)


def read_densities(results: Results, study: str, field: str) -> NDArray[np.float64] | None:
    """Return the densities of all prompts, `[prompts, ...]`; None if there are none."""
    rows = {row["prompt"]: row[field] for row in results.of_kind(study).values()}
    shapes = {np.shape(row) for row in rows.values()}
    if len(shapes) != 1:
        return None
    return np.array(list(rows.values()), dtype=np.float64)
