"""Make the data about densities and the embedded model that `svoo estimate` carries.

    python -m tools.estimate_data tables FOLDER   # from the authors' tables
    python -m tools.estimate_data mini            # from the weights in the package and the rows of
                                                  # docs/benchmarks/far_field.json, far-2340.json

Each command replaces its own part of the files and leaves the rest as it is.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import typer

from svoo.catalogue import find_model
from svoo.errors import FileError
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
ROOT = Path(__file__).parents[1]
DATA = ROOT / "src" / "svoo" / "app" / "estimate"
BENCHMARKS = ROOT / "docs" / "benchmarks"
RUNS = ("far_field.json", "far-2340.json")
OTHER_ARITHMETIC = "bf16 products"  # a setting that differs in its kernel alone

app = typer.Typer(add_completion=False, help=__doc__)


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


def of_embedded_model(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the share of pairs that the embedded model keeps, in paper mode by tokens and by the
    far field by tokens and tolerance: medians of the rows of a frontier."""
    mini = find_model("mini")
    paper: defaultdict[int, list[float]] = defaultdict(list)
    far: defaultdict[int, defaultdict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        tokens = mini.count_tokens(row["frames"], row["height"], row["width"])
        tolerance = row["config"].get("tolerance")
        if row["setting"] == "paper":
            paper[tokens].append(row["density"])
        elif tolerance is not None and row["setting"] != OTHER_ARITHMETIC:
            far[tokens][tolerance].append(row["density"])
    if not paper or not far:
        raise FileError("the rows need the setting 'paper' and some with a tolerance")
    prompts = ", ".join(f"{len(paper[tokens])} at {tokens:,} tokens" for tokens in sorted(paper))
    files = " and ".join(f"docs/benchmarks/{name}" for name in RUNS)
    origin = f"benchmarks/frontier.py --held-out: {files}; medians over prompts, {prompts}"
    return {
        "paper_mode": {
            "by_tokens": {str(size): round(median(paper[size]), 3) for size in sorted(paper)},
            "source": f"what the embedded model keeps in paper mode ({origin})",
        },
        "far_field": {
            "by_tokens": {
                str(size): {
                    str(tolerance): round(median(shares), 3)
                    for tolerance, shares in sorted(far[size].items())
                }
                for size in sorted(far)
            },
            "source": f"what the embedded model keeps by this tolerance ({origin})",
        },
    }


def architecture_of_mini() -> dict[str, Any]:
    """Return what the catalogue does not say of the embedded model, counted in its weights."""
    from svoo.mini.pipeline import load

    pipe, mini = load(), find_model("mini")
    config = pipe.transformer.config
    beside = [*pipe.text_encoder.parameters(), *pipe.vae.parameters()]
    shape = f"{config.num_layers} layers of {config.num_attention_heads} heads of "
    return {
        "feed_forward": config.ffn_dim,
        "text_tokens": mini.call_defaults["max_sequence_length"],
        "joint_text": False,
        "forwards": 2,
        "parameters": sum(each.numel() for each in pipe.transformer.parameters()),
        "beside": sum(each.numel() for each in beside),
        "source": f"the weights in the package: Wan architecture, {shape}"
        f"{config.attention_head_dim}",
    }


def as_text(data: Mapping[str, Any]) -> str:
    """Return a file of the package: a line for each part, and for each of the models."""
    parts = [
        f" {json.dumps(name)}: {json.dumps(value)}"
        for name, value in data.items()
        if name != "models"
    ]
    rows = [f"  {json.dumps(model)}: {json.dumps(row)}" for model, row in data["models"].items()]
    models = ' "models": {\n' + ",\n".join(rows) + "\n }"
    return "{\n" + ",\n".join([*parts, models]) + "\n}\n"


def _change(name: str, data: Path, **parts: Any) -> None:  # noqa: ANN401 (JSON)
    before = json.loads((data / name).read_text())
    write_atomically(data / name, as_text(before | parts).encode())


@app.command()
def tables(folder: Path, data: Path = DATA) -> None:
    """Write the mean densities of the authors' tables in a folder."""
    _change("densities.json", data, source=SOURCE, models=by_layer(folder))


@app.command()
def mini(data: Path = DATA, benchmarks: Path = BENCHMARKS) -> None:
    """Write what is known of the embedded model: run it after new weights and new benchmarks."""
    rows = [row for name in RUNS for row in json.loads((benchmarks / name).read_text())["rows"]]
    _change("densities.json", data, **of_embedded_model(rows))
    models = json.loads((data / "architectures.json").read_text())["models"]
    _change("architectures.json", data, models=models | {"mini": architecture_of_mini()})


if __name__ == "__main__":
    app()
