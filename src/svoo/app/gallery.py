"""What a method keeps of one head's attention, as a picture."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d

from svoo.core.plan import BlockPlan
from svoo.core.validate import default_scale, inference_only
from svoo.errors import ConfigError
from svoo.methods.base import Call, Corrected, Dense, Method, MethodConfig, Run
from svoo.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PIXELS = 384  # of a map's side, at most
_CHUNK = 1 << 23  # logits held at a time
_KEPT = (1.0, 0.45, 0.1)  # the colour over what is kept


@dataclass(frozen=True, eq=False)
class Sight:
    """One head of one attention call: its video tokens query `[1, 1, N, D]` and key `[1, 1, M,
    D]`, the scale of their logits, and the plan for them."""

    query: Tensor
    key: Tensor
    scale: float
    plan: BlockPlan


@dataclass(frozen=True, eq=False)
class Map:
    """Attention `[P, P]` (each row of pixels sums to 1) and the kept share of each pixel's pairs,
    in one order of the tokens."""

    attention: Tensor
    kept: Tensor


@dataclass(frozen=True, eq=False)
class Picture:
    """A head as it is and, where the method reorders tokens, in its order; the fraction of pairs
    that is kept, and the share of the attention on them."""

    maps: dict[str, Map]
    density: float
    recall: float


class _Seen(Exception):
    """The call that was looked for has come."""


class _Watched:
    """A method that shows one of its decisions and then ends the run."""

    def __init__(self, method: Method, where: tuple[int, int, int], found: list[Sight]) -> None:
        self._method = method
        self._where = where
        self._found = found

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever the method has)
        return getattr(self._method, name)

    def plan(
        self, query: Tensor, key: Tensor, value: Tensor, call: Call
    ) -> BlockPlan | Corrected | Dense:
        decision = self._method.plan(query, key, value, call)
        step, layer, head = self._where
        head -= call.head_offset
        if (call.step, call.layer) != (step, layer) or not 0 <= head < query.shape[1]:
            return decision
        if isinstance(decision, Dense):
            raise ConfigError(
                f"layer {layer} is dense at step {step}: {decision.reason}; choose another with "
                "--step or --layer"
            )
        plan = decision.plan if isinstance(decision, Corrected) else decision
        here = slice(head, head + 1)
        self._found.append(
            Sight(
                query[:1, here].clone(),
                key[:1, here].clone(),
                default_scale(query, call.scale),
                one_head(plan, head),
            )
        )
        raise _Seen


def watch_one(config: MethodConfig, where: tuple[int, int, int], found: list[Sight]) -> Any:  # noqa: ANN401 (a config of the same class)
    """Return the same settings of a method that puts the (step, layer, head) into `found` when it
    comes to it, and then ends the run."""
    kind = type(config)

    def start(self: MethodConfig, run: Run) -> Method:
        return _Watched(kind.start(self, run), where, found)

    watched = type(kind.__name__, (kind,), {"start": start})
    return watched(**{entry.name: getattr(config, entry.name) for entry in fields(config)})


def see(generate: Callable[[], object], found: list[Sight], where: tuple[int, int, int]) -> Sight:
    """Run a pipeline until a watched method has shown what was asked for."""
    try:
        generate()
    except _Seen:
        return found[0]
    step, layer, head = where
    raise ConfigError(
        f"the run has no attention call with step {step}, layer {layer}, head {head}: all count "
        "from 0"
    )


@inference_only
def draw_maps(sight: Sight, pixels: int = PIXELS) -> Picture:
    """Return a head's attention and what is kept of it, pooled to at most `pixels` a side."""
    plan, query, key = sight.plan, sight.query.float(), sight.key.float()
    mask_rows, columns = plan.query_blocks()[0, 0], plan.key_blocks()[0, 0]
    tokens = query.shape[2], key.shape[2]
    raster, kept_mass = _pool(query, key, sight.scale, plan, (mask_rows, columns), pixels)
    maps = {"tokens in raster order": raster}
    if plan.query_order is not None or plan.key_order is not None:
        rows = _blocks_in_order(plan.query_sizes, tokens[0])
        shown = plan.permute_queries(query), plan.permute_keys(key)
        blocks = rows, _blocks_in_order(plan.key_sizes, tokens[1])
        maps["tokens in the method's order"] = _pool(*shown, sight.scale, plan, blocks, pixels)[0]
    return Picture(maps, float(plan.density()), kept_mass)


def _blocks_in_order(sizes: Tensor, tokens: int) -> Tensor:
    blocks = torch.arange(sizes.shape[2], device=sizes.device)
    return torch.repeat_interleave(blocks, sizes[0, 0], output_size=tokens)


def _pool(
    query: Tensor,
    key: Tensor,
    scale: float,
    plan: BlockPlan,
    blocks: tuple[Tensor, Tensor],
    pixels: int,
) -> tuple[Map, float]:
    """Return the pooled map and the share of attention that is kept; `blocks` `[N]`, `[M]` say
    each token's block."""
    count = key.shape[2]
    shape = min(pixels, query.shape[2]), min(pixels, count)
    rows = max(1, _CHUNK // count)
    attention, kept, mass = [], [], 0.0
    for part in torch.arange(query.shape[2], device=query.device).split(rows):
        weights = (query[0, 0, part] @ key[0, 0].T * scale).softmax(dim=-1)
        mask = plan.keep[0, 0][blocks[0][part]][:, blocks[1]].float()
        mass += float((weights * mask).sum())
        attention.append(adaptive_avg_pool1d(weights, shape[1]))
        kept.append(adaptive_avg_pool1d(mask, shape[1]))
    pooled = [
        adaptive_avg_pool2d(torch.cat(part)[None], shape)[0].cpu() for part in (attention, kept)
    ]
    pooled[0] = pooled[0] / pooled[0].sum(dim=1, keepdim=True)
    return Map(*pooled), mass / query.shape[2]


def one_head(plan: BlockPlan, head: int) -> BlockPlan:
    """Return what a plan says of one head of its first sample, terms aside."""
    orders = [
        None if order is None else order[:1, head : head + 1]
        for order in (plan.query_order, plan.key_order)
    ]
    sizes = [side[:1, head : head + 1] for side in (plan.query_sizes, plan.key_sizes)]
    return BlockPlan(
        orders[0],
        orders[1],
        sizes[0],
        sizes[1],
        plan.keep[:1, head : head + 1],
        check=False,
        query_tokens=plan.query_tokens,
        key_tokens=plan.key_tokens,
    )


def write_picture(picture: Picture, path: Path, title: str) -> None:
    """Write a PNG: the attention in grey (logarithm), over it in colour what is kept."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(picture.maps), 5.7), layout="constrained")
    panels = figure.subplots(1, len(picture.maps), squeeze=False)[0]
    for axes, (name, shown) in zip(panels, picture.maps.items(), strict=True):
        draw_panel(axes, shown)
        axes.set(title=name, xlabel="key", ylabel="query", xticks=[], yticks=[])
    figure.suptitle(
        f"{title}\nkept: {picture.density:.1%} of the pairs, {picture.recall:.1%} of the attention"
    )
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    write_atomically(path, file.getvalue())


def draw_panel(axes: Axes, shown: Map) -> None:
    """Draw one map: the attention in grey, and half over it the colour of what is kept."""
    logs = (shown.attention * shown.attention.shape[1]).clamp(min=1e-3).log10()
    axes.imshow(logs.numpy(), cmap="gray", vmin=-3, vmax=1.5, interpolation="nearest")
    colour = torch.tensor(_KEPT).expand(*shown.kept.shape, 3)
    layer = torch.cat((colour, 0.5 * shown.kept.unsqueeze(-1)), dim=-1)
    axes.imshow(layer.numpy(), interpolation="nearest")
