"""The tables of the frontier in README and docs, from what `frontier.py` has measured.

    python benchmarks/frontier_pages.py            # fills the sections whose files are there
    python benchmarks/frontier_pages.py --show     # prints them and writes nothing

Nothing is run. A file of other weights than far_field's is left out, and said to be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from frontier import describe_order, free_attention
from pages import as_table, check_section, describe_runs, fill_section, made_on

from svoo.catalogue import find_model
from svoo.plugin.trial import SPARSE_PHASES

Row = dict[str, Any]
WORDS = {
    "paper": "paper mode (20 % of the steps dense)",
    "mean terms": "mean terms (our default before the far field)",
    "default": "**default, no dense step**",
    "fast": "fast: 1.4 times the tolerance",
    "careful": "careful: half the tolerance",
    "bf16 products": '`backend="cpp-bf16"`: products in bfloat16',
}
SIZES = ("size780", "far-2340", "far_field", "size14400")


class Run:
    """What one call of `frontier.py` has written."""

    def __init__(self, path: Path) -> None:
        """Read a file of rows."""
        content = json.loads(path.read_text())
        rows: list[Row] = [row for row in content["rows"] if "failed" not in row]
        latest = {row["setting"]: row for row in rows}  # what it was before it was changed is old
        self.rows = [row for row in rows if _alike(row, latest[row["setting"]])]
        self.machine = made_on(content["machine"], self.rows)
        self.settings = list(dict.fromkeys(row["setting"] for row in self.rows))

    def of(self, setting: str) -> list[Row]:
        """Return a setting's rows, one per prompt."""
        return [row for row in self.rows if row["setting"] == setting]

    def median(self, setting: str, figure: str) -> float:
        """Return the median of a figure over prompts."""
        return float(median(row[figure] for row in self.of(setting)))

    def psnr(self, setting: str) -> str:
        """Return the median PSNR, and in brackets the least."""
        least = min(row["psnr"] for row in self.of(setting))
        return f"{self.median(setting, 'psnr'):.1f} dB ({least:.1f})"

    @property
    def tokens(self) -> int:
        """Video tokens of a run."""
        row = self.rows[0]
        return find_model("mini").count_tokens(row["frames"], row["height"], row["width"])

    @property
    def dense(self) -> float:
        """Seconds of a dense loop."""
        return float(median(row["dense_denoising"] for row in self.rows))

    @property
    def free(self) -> float:
        """What the loop's speed-up would be if attention were free."""
        return free_attention(self.rows)

    @property
    def prompts(self) -> int:
        """How many prompts there are."""
        return len({row["prompt"] for row in self.rows})

    def about(self) -> str:
        """Return what was measured where."""
        steps = self.rows[0]["steps"]
        return describe_runs(self.tokens, steps, self.prompts, self.machine)


def _alike(row: Row, other: Row) -> bool:
    return all(row.get(name) == other.get(name) for name in ("config", "weights", "processor"))


def side_by_side(run: Run) -> str:
    """Return speed and likeness of every setting."""
    rows = [("", "denoising loop", "attention calls", "density", "PSNR", "SSIM")]
    rows += [("dense", f"{run.dense:.1f} s", "", "1", "", "")]
    for name in run.settings:
        found = {figure: run.median(name, figure) for figure in ("speed_up", "density", "ssim")}
        calls = run.median(name, "attention_speed_up")
        rows.append(
            (
                WORDS.get(name, name),
                f"{found['speed_up']:.2f}x",
                f"{calls:.1f}x",
                f"{found['density']:.3f}",
                run.psnr(name),
                f"{found['ssim']:.3f}",
            )
        )
    bound = f"If attention were free, the loop would be {run.free:.1f}x."
    return "\n\n".join((run.about(), as_table(*rows), bound))


def where_time_goes(run: Run) -> str:
    """Return a loop's seconds by part, of every setting."""
    rows = [("", "loop", "all but attention", *SPARSE_PHASES, "dense calls", "error of outputs")]
    for name in run.settings:
        phases = (*SPARSE_PHASES, "dense")
        parts = [run.median(name, f"seconds_{phase}") for phase in phases]
        other = median(
            row["denoising"] - sum(row[f"seconds_{phase}"] for phase in phases)
            for row in run.of(name)
        )
        error = [row["error"] for row in run.of(name) if row["error"] is not None]
        rows.append(
            (
                name,
                f"{run.median(name, 'denoising'):.1f} s",
                f"{other:.1f} s",
                *(f"{seconds:.2f} s" for seconds in parts),
                f"{median(error):.1%}" if error else "",
            )
        )
    order = describe_order(run.rows)
    told = f"\n\n`stats().error` against PSNR {order}." if order else ""
    return f"{as_table(*rows)}{told}"


def few_steps(eight: Run, four: Run) -> str:
    """Return runs of 8 and of 4 steps side by side."""
    head = [
        f"{run.rows[0]['steps']} steps: {w}"
        for run in (eight, four)
        for w in ("loop", "calls", "PSNR")
    ]
    rows = [("", *head)]
    rows += [("dense", f"{eight.dense:.1f} s", "", "", f"{four.dense:.1f} s", "", "")]
    for name in eight.settings:
        cells = [
            cell
            for run in (eight, four)
            for cell in (
                f"{run.median(name, 'speed_up'):.2f}x",
                f"{run.median(name, 'attention_speed_up'):.1f}x",
                run.psnr(name),
            )
        ]
        rows.append((name, *cells))
    return f"{eight.about()}\n\n{as_table(*rows)}"


def by_size(*runs: Run) -> str:
    """Return the default at several sizes."""
    head = ("tokens", "prompts", "density", "keys a query", "PSNR", "attention, of dense", "loop")
    rows = [(*head, "dense calls")]
    for run in sorted(runs, key=lambda run: run.tokens):
        density = run.median("default", "density")
        rows.append(
            (
                f"{run.tokens:,}",
                f"{run.prompts}",
                f"{density:.3f}",
                f"{density * run.tokens:.0f}",
                run.psnr("default"),
                f"{1 / run.median('default', 'attention_speed_up'):.1%}",
                f"{run.median('default', 'speed_up'):.2f}x",
                f"{run.median('default', 'dense_calls'):.0f}",
            )
        )
    return as_table(*rows)


# Page, section, what fills it, and the files that it is made of.
SECTIONS: tuple[tuple[str, str, Callable[..., str], tuple[str, ...]], ...] = (
    ("README.md", "far_field", side_by_side, ("far_field",)),
    ("docs/figures.md", "far_field", side_by_side, ("far_field",)),
    ("docs/frontier.md", "far_field", side_by_side, ("far_field",)),
    ("docs/frontier.md", "seconds", where_time_goes, ("far_field",)),
    ("docs/frontier.md", "avx2", side_by_side, ("far_field-avx2",)),
    ("docs/frontier.md", "steps", few_steps, ("steps8", "steps4")),
    ("docs/frontier.md", "sizes", by_size, SIZES),
    ("docs/frontier.md", "far-2340", side_by_side, ("far-2340",)),
    ("docs/frontier.md", "choices", side_by_side, ("choices",)),
    ("docs/frontier.md", "labels-7488", side_by_side, ("labels-7488",)),
)


def read_runs(folder: Path) -> dict[str, Run]:
    """Return the runs of the weights that most files have, by name, and say which were left
    out."""
    names = dict.fromkeys(name for *_, files in SECTIONS for name in files)
    runs = {
        name: Run(folder / f"{name}.json") for name in names if (folder / f"{name}.json").exists()
    }
    weights = {name: run.rows[0]["weights"] for name, run in runs.items() if run.rows}
    if "far_field" not in weights:
        raise SystemExit(f"{folder} has no far_field.json with rows: the weights are not known")
    for name, own in weights.items():
        if own != weights["far_field"]:
            print(f"{name} is of other weights than far_field: its section stays as it is")
    return {name: runs[name] for name, own in weights.items() if own == weights["far_field"]}


def main(
    folder: Annotated[Path, typer.Argument(help="Where the JSON files are.")] = Path(
        "docs/benchmarks"
    ),
    *,
    show: Annotated[bool, typer.Option("--show", help="Print only.")] = False,
) -> None:
    """Fill the sections."""
    runs = read_runs(folder)
    for page, section, fill, files in SECTIONS:
        found = [runs[name] for name in files if name in runs]
        if fill is by_size:
            found = [run for run in found if "default" in run.settings]
        elif len(found) < len(files):
            continue
        if show:
            print(f"{page}, {section}:\n{fill(*found)}\n")
        else:
            check_section(Path(page), section)
            fill_section(Path(page), section, fill(*found))


if __name__ == "__main__":
    typer.run(main)
