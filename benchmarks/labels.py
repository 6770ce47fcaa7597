"""Who makes the labels, and how many: k-means, co-clusters, mixtures of both, counts of each side.

    python benchmarks/labels.py --out docs/benchmarks --page docs/frontier.md

Default mode with other labels on held-out prompts, dense and sparse from the same noise. The
mixtures are no settings: they are put in the method's place here, to see what they would give.
Nothing is timed: the price of labels is in the frontier's rows. Two minutes on two cores at 2,340
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from unittest import mock

import typer
from frontier import held_out_prompts
from harness import fingerprint, machine, save
from pages import as_table, check_section, describe_runs, fill_section
from rich.progress import track
from torch import Tensor

from svoo.catalogue import find_model
from svoo.core.cluster_counts import default_clusters, far_fineness
from svoo.core.sorting import SortedLabels
from svoo.methods.base import Call
from svoo.methods.svoo import far
from svoo.methods.svoo.config import SVOOConfig
from svoo.methods.svoo.labels import LabelState
from svoo.mini import load
from svoo.plugin.trial import run_trial

Sides = tuple[SortedLabels, SortedLabels]
Maker = Callable[[Sequence[Tensor], SVOOConfig, Call, LabelState, tuple[int, int]], Sides]
_make: Maker = far._new_sides  # what the method itself calls
CO = SVOOConfig(clustering="co")
K_MEANS = SVOOConfig()


def co_queries(tokens: Sequence[Tensor], _: SVOOConfig, *rest: Any) -> Sides:  # noqa: ANN401
    """Take queries from co-clusters, keys from k-means."""
    return _make(tokens, CO, *rest)[0], _make(tokens, K_MEANS, *rest)[1]


def co_keys(tokens: Sequence[Tensor], _: SVOOConfig, *rest: Any) -> Sides:  # noqa: ANN401
    """Take keys from co-clusters, queries from k-means."""
    return _make(tokens, K_MEANS, *rest)[0], _make(tokens, CO, *rest)[1]


def co_first(
    tokens: Sequence[Tensor],
    _: SVOOConfig,
    call: Call,
    state: LabelState,
    counts: tuple[int, int],
) -> Sides:
    """Begin with co-clusters; from the second step on k-means moves them."""
    config = K_MEANS if state.fits(tokens[0], tokens[1], len(tokens[0])) else CO
    return _make(tokens, config, call, state, counts)


@dataclass(frozen=True)
class Labels:
    """A way to label: settings, and for mixtures who makes the labels in the method's place."""

    config: SVOOConfig
    maker: Maker | None = None


def ways(tokens: int) -> dict[str, Labels]:
    """Return all that is tried on a video of so many tokens."""
    found = {
        "k-means (default)": Labels(K_MEANS),
        "co-clusters": Labels(CO),
        "co-clusters for queries, k-means for keys": Labels(K_MEANS, co_queries),
        "k-means for queries, co-clusters for keys": Labels(K_MEANS, co_keys),
        "co-clusters at the first step, k-means from there": Labels(K_MEANS, co_first),
    }
    counts = default_clusters(tokens, far_fineness(tokens))
    for side, count in zip(("query", "key"), counts, strict=True):
        for word, factor in (("half", 0.5), ("twice", 2.0)):
            change: dict[str, Any] = {f"{side}_clusters": round(count * factor)}
            found[f"{word} the {side} clusters"] = Labels(replace(K_MEANS, **change))
    return found


@contextmanager
def made_by(maker: Maker | None) -> Iterator[None]:
    """Let another make the labels of default mode; None: nobody else."""
    with mock.patch.object(far, "_new_sides", maker or _make):
        yield


def as_rows(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the table: medians over prompts, and the prompt by prompt gain over the default."""
    names = list(dict.fromkeys(row["labels"] for row in rows))
    psnr = {name: {r["prompt"]: r["psnr"] for r in rows if r["labels"] == name} for name in names}
    table: list[tuple[str, ...]] = [
        ("labels", "density", "error of outputs", "PSNR", "less the default, by prompt")
    ]
    for name in names:
        own = [row for row in rows if row["labels"] == name]
        gains = [psnr[name][text] - psnr[names[0]][text] for text in psnr[name]]
        said = "" if name == names[0] else ", ".join(f"{gain:+.1f}" for gain in gains)
        worst = min(psnr[name].values())
        table.append(
            (
                name,
                f"{median(row['density'] for row in own):.3f}",
                f"{median(row['error'] for row in own):.1%}",
                f"{median(psnr[name].values()):.1f} dB ({worst:.1f})",
                said,
            )
        )
    return table


def main(
    *,
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("out/benchmarks"),
    page: Annotated[Path | None, typer.Option(help="A page whose section is filled.")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts.")] = 5,
    height: int = 80,
    width: int = 144,
    frames: int = 49,
    steps: int = 20,
) -> None:
    """Try all of them, and print the table."""
    if page is not None:
        check_section(page, "labels")
    pipe, model = load(), find_model("mini")
    pipe.set_progress_bar_config(disable=True)
    sizes = {"height": height, "width": width, "num_frames": frames, "num_inference_steps": steps}
    tokens = model.count_tokens(frames, height, width)
    rows: list[dict[str, Any]] = []
    for text in track(held_out_prompts(prompts), "held-out prompts"):
        call = model.call_defaults | sizes | {"prompt": text}
        dense = run_trial(pipe, "dense", None, call=call)
        for name, labels in ways(tokens).items():
            with made_by(labels.maker):
                trial = run_trial(pipe, name, labels.config, call=call, against=dense)
            assert trial.likeness is not None
            found = {"density": trial.density, "psnr": trial.likeness.psnr}
            rows.append({"prompt": text, "labels": name, "error": trial.stats.error, **found})
    save(out, "labels", rows, sizes=sizes, weights=fingerprint(pipe))
    text = as_table(*as_rows(rows))
    print(text)
    if page is not None:
        about = describe_runs(tokens, steps, prompts, machine())
        fill_section(page, "labels", f"{about}\n\n{text}")


if __name__ == "__main__":
    typer.run(main)
