"""Draw docs/method.png: the three tiers of the far field, as `plan_far_field` makes them.

    python -m tools.method_picture docs/method.png

Tokens have two dimensions here, so that they can be drawn; nothing else differs from a video.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from svoo.core.clustering import CoClusters
from svoo.core.far_plan import plan_far_field
from svoo.core.kmeans import k_means
from svoo.core.plan import BlockPlan
from svoo.core.terms import FarTerms

NEAR, MIDDLE, FAR = 0, 1, 2
COLOURS = ("#c0392b", "#2471a3", "#b7b7b7")
NAMES = ("near: every token", "middle: one term per block", "far: one term per group (ring)")
_TOKENS, _QUERY_CLUSTERS, _KEY_CLUSTERS, _GROUPS = 1500, 24, 60, 6
_TOLERANCE = 5e-4
_SEED = 3


@dataclass(frozen=True)
class Example:
    """Tokens query, key `[1, 1, N, 2]`, their clusters, and the plan that they get."""

    query: Tensor
    key: Tensor
    clusters: CoClusters
    plan: BlockPlan

    def tiers(self) -> Tensor:
        """Return NEAR, MIDDLE or FAR for every block, `[Cq, Ck]`."""
        terms = self.plan.terms
        assert isinstance(terms, FarTerms)
        tiers = torch.full(self.plan.keep.shape, FAR)
        tiers[terms.middle] = MIDDLE
        tiers[self.plan.keep] = NEAR
        return tiers[0, 0]


def make_example() -> Example:
    """Draw tokens around a ring, cluster them, and plan: the same at every call."""
    chance = torch.Generator().manual_seed(_SEED)

    def around_a_ring(radius: float) -> Tensor:
        angle = torch.rand(_TOKENS, generator=chance) * 2 * torch.pi
        ring = radius * torch.stack((angle.cos(), angle.sin()), dim=-1)
        return (ring + 0.5 * torch.randn(_TOKENS, 2, generator=chance))[None, None]

    query, key = around_a_ring(2.0), around_a_ring(2.0)
    value = key + 4 * torch.randn(key.shape, generator=chance)  # varied inside a block too
    clusters = k_means(query, key, _QUERY_CLUSTERS, _KEY_CLUSTERS, iterations=8, generator=chance)
    plan = plan_far_field(
        query,
        key,
        value,
        clusters.query.sorted(),
        clusters.key.sorted(),
        tolerance=_TOLERANCE,
        groups=_GROUPS,
        implementation="torch",
    )
    return Example(query, key, clusters, plan)


def draw(example: Example) -> Figure:
    """Return the picture: left, the keys as one query block meets them; right, all blocks."""
    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.35))
    tiers = example.tiers()
    block = int((tiers == NEAR).sum(dim=1).argmax())
    _draw_keys(left, example, tiers[block], block)
    # Key blocks side by side by angle, query blocks too: neighbours stay neighbours.
    rows, columns = (
        torch.atan2(side.centroids[0, 0, :, 1], side.centroids[0, 0, :, 0]).argsort()
        for side in (example.clusters.query, example.clusters.key)
    )
    right.imshow(tiers[rows][:, columns].tolist(), cmap=ListedColormap(COLOURS), aspect="auto")
    right.set_xlabel("key blocks")
    right.set_ylabel("query blocks")
    right.set_title("All blocks of the head", fontsize=10)
    return figure


def _draw_keys(axes: mpl.axes.Axes, example: Example, tiers: Tensor, block: int) -> None:
    """Draw near tokens as dots, middle blocks as discs of their size, far groups as rings."""
    labels = example.clusters.key.labels[0, 0]
    key, keys = example.key[0, 0], example.clusters.key

    def dots(points: Tensor, size: float | list[float], **style: Any) -> None:  # noqa: ANN401 (matplotlib's)
        axes.scatter(points[:, 0].tolist(), points[:, 1].tolist(), size, **style)

    for tier, size, strength in ((FAR, 3, 0.45), (MIDDLE, 3, 0.3), (NEAR, 7, 1.0)):
        tokens = key[tiers[labels] == tier]
        dots(tokens, size, c=COLOURS[tier], alpha=strength, linewidths=0)
    middle = tiers == MIDDLE
    areas = (2.5 * keys.sizes[0, 0, middle]).tolist()
    dots(keys.centroids[0, 0, middle], areas, c=COLOURS[MIDDLE], linewidths=0)
    terms = example.plan.terms
    assert isinstance(terms, FarTerms)
    assert terms.groups is not None
    used = terms.groups.bias[0, 0, block] > -torch.inf
    dots(terms.groups.key[0, 0, block, used], 260, facecolors="none", edgecolors="#555555")
    dots(example.clusters.query.centroids[0, 0, block, None], 120, c="black", marker="*")
    handles = [
        axes.scatter([], [], s=30, c=colour, label=name)
        for colour, name in zip(COLOURS, NAMES, strict=True)
    ]
    star = axes.scatter([], [], s=60, c="black", marker="*", label="mean query of the block")
    axes.legend(
        handles=[*handles, star],
        fontsize=7,
        ncols=2,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        frameon=False,
    )
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("The keys, as one query block meets them", fontsize=10)


def main(path: Path) -> None:
    """Write the picture."""
    draw(make_example()).savefig(path, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
