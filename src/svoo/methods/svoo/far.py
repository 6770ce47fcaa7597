"""Default mode: clusters from few features, blocks by tolerance, far-field terms for the rest."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from svoo.core.far_plan import plan_far_field
from svoo.core.features import equal_labels, k_means_labels
from svoo.core.plan import BlockPlan
from svoo.core.sorting import SortedLabels, sort_sides
from svoo.methods.base import Call
from svoo.methods.svoo.config import SVOOConfig
from svoo.methods.svoo.labels import LabelState, cluster, cluster_counts, clustering_work


def plan_far_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    config: SVOOConfig,
    call: Call,
    tolerance: float,
    state: LabelState | None = None,
    weight: Tensor | None = None,
) -> BlockPlan:
    """Cluster, look from afar, choose: the plan with far-field terms for the video tokens."""
    state = state or LabelState(step=call.step)
    counts = cluster_counts(config, query, key)
    with call.watch("clustering"):
        videos = call.videos(len(query)) if config.share_branches else list(range(len(query)))
        if not state.is_fresh(query, key, config.recluster_every, videos):
            firsts = [videos.index(video) for video in range(max(videos) + 1)]
            shown = [query, key, value]
            if len(firsts) < len(query):  # picking all of them would copy them
                shown = [side[firsts] for side in shown]
            warm = config.clustering == "kmeans" and state.fits(shown[0], shown[1], len(shown[0]))
            rounds = 1 if warm else config.iterations
            call.count("clustering", clustering_work(query, key, config, rounds))
            state.keep(*_new_sides(shown, config, call, state, counts))
        sides = state.sides_of(videos)
    call.count("selection", counts[0] / query.shape[2])  # query means look at all keys
    with call.watch("selection"):
        return plan_far_field(
            query,
            key,
            value,
            *sides,
            tolerance=tolerance,
            weight=weight,
            groups=config.groups,
            scale=call.scale,
        )


def _new_sides(
    tokens: Sequence[Tensor],
    config: SVOOConfig,
    call: Call,
    state: LabelState,
    counts: tuple[int, int],
) -> tuple[SortedLabels, SortedLabels]:
    """Return new labels, sorted: k-means on few features, from where the old labels' centroids are
    now, or what else the config asks for."""
    query, key, value = tokens
    if config.clustering == "balanced":
        return sort_sides(equal_labels(query, key, value, *counts), counts)
    if config.clustering == "co":
        made = cluster(query, key, config, call.chance(config.seed))
        return made.query.sorted(), made.key.sorted()
    old = state.sides_of(range(len(query))) if state.fits(query, key, len(query)) else None
    labels = k_means_labels(
        query,
        key,
        value,
        *counts,
        iterations=config.iterations if old is None else 1,
        old=old,
        generator=call.chance(config.seed),
    )
    return sort_sides(labels, counts)
