"""Two estimates of the error, and whether errors measured once would choose better blocks.

    python benchmarks/error_estimate.py --out docs/benchmarks --page docs/frontier.md

**Which estimate tells the order?** `stats().error` computes a few queries of every call exactly;
the expected error, the root of the summed e_ij^2 of left-out blocks over the length of the output,
costs nothing. Both are compared with the PSNR that only a dense run can tell.

**Do measured errors help?** On prompts of the profile each head's true error is measured beside
the expected one. Their ratio, as a further weight of the head, is tried on held-out prompts: the
same tolerances with it and without.

The embedded model at 2,340 tokens, a few minutes on two cores. Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from unittest import mock

import torch
import typer
from frontier import correlations_within, dense_videos, rank_correlation
from harness import fingerprint, machine, save
from pages import as_table, check_section, describe_runs, fill_section
from rich.progress import track
from torch import Tensor

from svoo.backends import run_plan
from svoo.catalogue import find_model
from svoo.core.clustering import choose_implementation
from svoo.core.far_field import expected_error, find_moments, see_blocks, term_weights
from svoo.core.plan import BlockPlan
from svoo.core.quality import sampled_error
from svoo.core.random import seeded
from svoo.core.validate import default_scale
from svoo.methods.base import Call
from svoo.methods.svoo.config import SVOOConfig
from svoo.methods.svoo.far import plan_far_call
from svoo.mini import load
from svoo.plugin.adapters import weigh_heads
from svoo.plugin.calibrate import MINI_PROMPTS, read_inputs
from svoo.plugin.trial import Trial, run_trial

TOLERANCES = (0.0064, 0.0128, 0.0256, 0.0512)
EXACT = 32  # queries per head and call that true errors are measured on
Seen = Callable[[Call, Tensor, Tensor, Tensor, BlockPlan], None]


def expect(
    query: Tensor, key: Tensor, value: Tensor, plan: BlockPlan, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return the mean over queries of the expected squared error and of the squared length of the
    output as query means see it, `[H]` each, for a plan of video tokens `[1, H, N, D]`."""
    factor, by = default_scale(query, scale), choose_implementation(query, "auto")
    assert plan.query_order is not None and plan.key_order is not None
    queries = find_moments(query, plan.query_order, plan.query_sizes, by=by)
    keys = find_moments(key, plan.key_order, plan.key_sizes, by=by)
    values = find_moments(value, plan.key_order, plan.key_sizes, by=by)
    sides = queries.mean, keys.mean
    seen = see_blocks(*sides, key, value, plan.key_order, plan.key_sizes, scale=factor, by=by)
    weights = term_weights(*sides, seen.bias, scale=factor).weights
    error = expected_error(weights, queries, keys, values, seen.length, scale=factor)
    left = ~plan.keep & (plan.key_sizes > 0).unsqueeze(2)
    square = (error.square() * left).sum(dim=-1)
    output = torch.einsum("bhij,bhijd->bhid", weights, seen.value)
    counts = plan.query_sizes / plan.query_sizes.sum(dim=-1, keepdim=True)
    sums = (square * counts).sum(dim=-1), (output.square().sum(dim=-1) * counts).sum(dim=-1)
    return sums[0].mean(dim=0), sums[1].mean(dim=0)


@contextmanager
def watched(see: Seen) -> Iterator[None]:
    """Show each plan of default mode to `see`."""

    def plan(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> BlockPlan:  # noqa: ANN401 (handed on)
        made = plan_far_call(query, key, value, *rest, **named)
        see(rest[1], query, key, value, made)
        return made

    with mock.patch("svoo.methods.svoo.method.plan_far_call", plan):
        yield


@contextmanager
def corrected(ratios: Tensor) -> Iterator[None]:
    """Multiply the weights of heads by ratios `[layers, heads]`."""

    def weigh(attentions: Any) -> Tensor | None:  # noqa: ANN401 (handed on)
        found = weigh_heads(attentions)
        return None if found is None else found * ratios

    with mock.patch("svoo.plugin.runtime.weigh_heads", weigh):
        yield


def measure_ratios(pipe: object, calls: Sequence[dict[str, Any]]) -> Tensor:
    """Return true over expected error of each head, `[layers, heads]`, 1 in the geometric mean."""
    model = find_model("mini")
    sums = torch.zeros(2, model.layers, model.heads)
    chance = seeded(0)

    def see(call: Call, query: Tensor, key: Tensor, value: Tensor, plan: BlockPlan) -> None:
        expected, _ = expect(query, key, value, plan, call.scale)
        output = run_plan(query, key, value, plan, scale=call.scale)
        wrong = sampled_error(
            query, key, value, output, rows=EXACT, generator=chance, scale=call.scale
        )
        length = output.square().sum(dim=-1).mean(dim=-1)
        sums[:, call.layer] += torch.stack(((wrong * length).mean(dim=0), expected))

    for call in track(calls, "true errors"):
        with watched(see):
            run_trial(pipe, "errors", SVOOConfig(), call=call)
    ratios = (sums[0] / sums[1]).sqrt()
    return ratios / ratios.log().mean().exp()


def try_setting(
    pipe: object, call: dict[str, Any], tolerance: float, dense: Trial
) -> dict[str, Any]:
    """Return density, PSNR and both estimates of a run."""
    squares: list[Tensor] = []

    def see(made: Call, query: Tensor, key: Tensor, value: Tensor, plan: BlockPlan) -> None:
        wrong, length = expect(query, key, value, plan, made.scale)
        squares.append((wrong / length).mean())

    with watched(see):
        trial = run_trial(pipe, "far", SVOOConfig(tolerance=tolerance), call=call, against=dense)
    assert trial.likeness is not None
    if trial.stats.error is None:
        raise SystemExit("every call was dense at this size: take a larger video")
    return {
        "density": trial.density,
        "psnr": trial.likeness.psnr,
        "sampled": trial.stats.error,
        "expected": float(torch.stack(squares).mean().sqrt()),
    }


def describe_order(rows: Sequence[dict[str, Any]], estimate: str) -> str:
    """Return how well an estimate orders runs by PSNR: in all, over settings and over prompts."""
    known = [row | {"error": row[estimate]} for row in rows]
    found = [rank_correlation(known)]
    found += [median(correlations_within(known, name)) for name in ("prompt", "setting")]
    return (
        f"{estimate} error against PSNR, Spearman: {found[0]:.2f} over {len(known)} runs, "
        f"{found[1]:.2f} over the tolerances of one prompt, {found[2]:.2f} over the prompts of "
        "one tolerance (medians)"
    )


def as_rows(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return density and PSNR of each tolerance, without measured errors and with them."""
    table: list[tuple[str, ...]] = [
        ("tolerance", "density", "PSNR", "with measured errors: density", "PSNR")
    ]
    for setting in dict.fromkeys(row["setting"] for row in rows):
        cells = []
        for is_corrected in (False, True):
            own = [r for r in rows if (r["setting"], r["corrected"]) == (setting, is_corrected)]
            least = min(row["psnr"] for row in own)
            cells += [f"{median(row['density'] for row in own):.3f}"]
            cells += [f"{median(row['psnr'] for row in own):.1f} dB ({least:.1f})"]
        table.append((setting, *cells))
    return table


def main(
    *,
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("out/benchmarks"),
    page: Annotated[Path | None, typer.Option(help="A page whose section is filled.")] = None,
    prompts: Annotated[int, typer.Option(min=3, help="Held-out prompts.")] = 5,
    learnt: Annotated[int, typer.Option(min=1, help="Prompts of the profile.")] = 3,
    height: int = 80,
    width: int = 144,
    frames: int = 49,
    steps: int = 20,
) -> None:
    """Measure ratios on some prompts, and try them and both estimates on others."""
    if page is not None:
        check_section(page, "error_estimate")
    pipe, model = load(), find_model("mini")
    pipe.set_progress_bar_config(disable=True)
    sizes = {"height": height, "width": width, "num_frames": frames, "num_inference_steps": steps}
    shared: dict[str, Any] = model.call_defaults | sizes
    known = [entry["prompt"] for entry in read_inputs(MINI_PROMPTS, count=learnt)]
    ratios = measure_ratios(pipe, [shared | {"prompt": text} for text in known])
    rows: list[dict[str, Any]] = []
    for text, call, dense in dense_videos(pipe, prompts, sizes):
        for tolerance in TOLERANCES:
            about = {"prompt": text, "setting": f"{tolerance:g}"}
            rows.append(about | {"corrected": False} | try_setting(pipe, call, tolerance, dense))
            with corrected(ratios):
                found = try_setting(pipe, call, tolerance, dense)
            rows.append(about | {"corrected": True} | found)
    facts = {"sizes": sizes, "weights": fingerprint(pipe), "ratios": ratios.tolist()}
    save(out, "error_estimate", rows, **facts)
    plain = [row for row in rows if not row["corrected"]]
    parts = (
        describe_runs(model.count_tokens(frames, height, width), steps, prompts, machine()),
        as_table(*as_rows(rows)),
        f"True over expected error of heads, measured on {learnt} prompts of the profile: "
        f"{ratios.min():.2f} to {ratios.max():.2f} of their mean.",
        "\n".join(f"- {describe_order(plain, name)}" for name in ("sampled", "expected")),
    )
    print("\n\n".join(parts))
    if page is not None:
        fill_section(page, "error_estimate", "\n\n".join(parts))


if __name__ == "__main__":
    typer.run(main)
