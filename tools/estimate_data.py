"""Make the mean densities that `svoo estimate` carries from the authors' tables.

python -m tools.estimate_data FOLDER_OF_TABLES
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import typer

from svoo.profiles.authors_csv import read_table
from svoo.storage import write_atomically

TABLES = {
    "wan2.1-t2v-1.3b": "sparsity_wan_1.3B_t2v.csv",
    "wan2.1-t2v-14b": "sparsity_wan_14B_t2v.csv",
    "wan2.1-i2v-14b": "sparsity_wan_14B_i2v.csv",
    "wan2.2-t2v-a14b": "sparsity_wan22_A14B_t2v.csv",
    "wan2.2-i2v-a14b": "sparsity_wan22_A14B_i2v.csv",
    "hunyuanvideo-t2v": "sparsity_hunyuan10_13B_t2v.csv",
    "hunyuanvideo-i2v": "sparsity_hunyuan10_13B_i2v.csv",
}
SOURCE = (
    "The authors' published tables of required density (mass 0.95, one prompt, 720p). Per layer, "
    "mean: over all steps and heads; low: the part of that mean that heads of at most 0.1 make."
)
THETA = 0.1  # heads above it keep what mass asks for, where that is less
OUT = Path(__file__).parents[1] / "src" / "svoo" / "app" / "estimate" / "densities.json"


def by_layer(folder: Path, models: Iterable[str] = TABLES) -> dict[str, dict[str, list[float]]]:
    """Return the mean density of every layer of models, and what low heads make of it."""
    found = {}
    for model in models:
        density = read_table(folder / TABLES[model], model).at_mass().double()
        low = density.where(density <= THETA, 0)
        found[model] = {
            "mean": [round(value, 4) for value in density.mean(dim=(0, 1, 3)).tolist()],
            "low": [round(value, 4) for value in low.mean(dim=(0, 1, 3)).tolist()],
        }
    return found


def main(folder: Path) -> None:
    """Write the file that the package carries."""
    rows = [f"  {json.dumps(model)}: {json.dumps(row)}" for model, row in by_layer(folder).items()]
    lines = ["{", f' "source": {json.dumps(SOURCE)},', ' "models": {', ",\n".join(rows), " }", "}"]
    write_atomically(OUT, ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    typer.run(main)
