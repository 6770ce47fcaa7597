"""Default mode with one part exchanged: who makes the labels, how many clusters, factors by step.

    python benchmarks/variants.py --out docs/benchmarks --page docs/frontier.md

K-means, co-clusters and mixtures of both; half and twice the clusters of each side; tolerances
that grow over the steps. On held-out prompts, dense and sparse from the same noise. Mixtures and
late factors are no settings: they are put in the method's place here, to see what they would give.
Nothing is timed. Some minutes on two cores at 2,340 tokens.
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
from frontier import dense_videos
from harness import fingerprint, machine, save
from pages import as_table, check_section, describe_runs, fill_section
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


@dataclass(frozen=True, kw_only=True)
class Growing(SVOOConfig):
    """Half the tolerance in the first quarter of the steps, all of it in the second, then 1.5
    times: what the sketch of the far field had."""

    def tolerance_at(self, step: int, steps: int) -> float:
        """Return the tolerance of a step."""
        assert self.tolerance is not None
        return self.tolerance * (0.5 if step < steps / 4 else 1.0 if step < steps / 2 else 1.5)


@dataclass(frozen=True, kw_only=True)
class Late(SVOOConfig):
    """The default's tolerances, and 1.5 times in the second half of the steps."""

    def tolerance_at(self, step: int, steps: int) -> float:
        """Return the tolerance of a step."""
        return super().tolerance_at(step, steps) * (1.0 if step < steps / 2 else 1.5)


@dataclass(frozen=True)
class Variant:
    """Settings, and for mixtures who makes the labels in the method's place."""

    config: SVOOConfig
    maker: Maker | None = None


def variants(tokens: int) -> dict[str, Variant]:
    """Return all that is tried on a video of so many tokens."""
    found = {
        "default: k-means, a quarter of the tolerance in the first tenth": Variant(K_MEANS),
        "co-clusters": Variant(CO),
        "co-clusters for queries, k-means for keys": Variant(K_MEANS, co_queries),
        "k-means for queries, co-clusters for keys": Variant(K_MEANS, co_keys),
        "co-clusters at the first step, k-means from there": Variant(K_MEANS, co_first),
        "tolerance x .5, 1, 1.5 from a quarter and a half on": Variant(Growing()),
        "1.5 times the tolerance in the second half": Variant(Late()),
    }
    counts = default_clusters(tokens, far_fineness(tokens))
    for side, count in zip(("query", "key"), counts, strict=True):
        for word, factor in (("half", 0.5), ("twice", 2.0)):
            change: dict[str, Any] = {f"{side}_clusters": round(count * factor)}
            found[f"{word} the {side} clusters"] = Variant(replace(K_MEANS, **change))
    return found


@contextmanager
def made_by(maker: Maker | None) -> Iterator[None]:
    """Let another make the labels of default mode; None: nobody else."""
    with mock.patch.object(far, "_new_sides", maker or _make):
        yield


def as_rows(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the table: medians over prompts, and the prompt by prompt gain over the default."""
    names = list(dict.fromkeys(row["variant"] for row in rows))
    psnr = {name: {r["prompt"]: r["psnr"] for r in rows if r["variant"] == name} for name in names}
    table: list[tuple[str, ...]] = [
        ("variant", "density", "error of outputs", "PSNR", "less the default, by prompt")
    ]
    for name in names:
        own = [row for row in rows if row["variant"] == name]
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
        check_section(page, "variants")
    pipe, model = load(), find_model("mini")
    sizes = {"height": height, "width": width, "num_frames": frames, "num_inference_steps": steps}
    tokens = model.count_tokens(frames, height, width)
    rows: list[dict[str, Any]] = []
    for text, call, dense in dense_videos(pipe, prompts, sizes):
        for name, variant in variants(tokens).items():
            with made_by(variant.maker):
                trial = run_trial(pipe, name, variant.config, call=call, against=dense)
            assert trial.likeness is not None
            if trial.stats.error is None:
                raise SystemExit("every call was dense at this size: take a larger video")
            found = {"density": trial.density, "psnr": trial.likeness.psnr}
            rows.append({"prompt": text, "variant": name, "error": trial.stats.error, **found})
    save(out, "variants", rows, sizes=sizes, weights=fingerprint(pipe))
    text = as_table(*as_rows(rows))
    print(text)
    if page is not None:
        about = describe_runs(tokens, steps, prompts, machine())
        fill_section(page, "variants", f"{about}\n\n{text}")


if __name__ == "__main__":
    typer.run(main)
