"""What the tests of several methods do: plans as token masks, and a method's life in a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from making import normal
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo import BlockPlan, Call, MethodConfig, Run, Session, VideoLayout, make_plan

# Settings that leave something out of so few tokens as the tests' clips have (48).
SMALL: dict[str, dict[str, Any]] = {
    "spargeattn": {"query_block": 8, "key_block": 4},
    "radial": {"block": 4, "decay": 0.01, "sink": False},
    "sol": {"block": 4},
    "pisa": {"block": 4},
    "xattention": {"block": 4, "stride": 2, "mass": 0.5},
    "svoo": {"query_clusters": 4, "key_clusters": 8, "mass": 0.5, "tolerance": None},
    "svg2": {"query_clusters": 6000, "key_clusters": 12000, "mass": 0.5},
    "svg1": {"block": 4, "density": 0.2},
    "adacluster": {"query_clusters": 6000, "key_clusters": 12000, "keep": 4000},
    "sparsepr": {"key_clusters": 12000, "probes": 4},
    "clusterattention": {"query_block": 8, "key_block": 8},
    "sta": {"tile": (1, 2, 2), "windows": (1, 1, 1)},
    "vmoba": {"time": 1, "plane": (2, 2), "cube": (1, 2, 2)},
    "dsv": {"sparsity": 0.9},
    "draft": {"sparsity": 0.7, "pool": (2, 2), "dense_sigma": 1.0},
    "vsa": {"sparsity": 0.6, "tile": (2, 2, 2)},
    "bsa": {"mass": 0.3, "least": 2, "tile": (2, 2, 2)},
    "rainfusion": {"block": 4},
    "rainfusion2": {"block": 4},
    "adaspa": {"block": 4},
    "svg-ear": {"query_clusters": 6000, "key_clusters": 12000, "mass": 0.5},
}


def tiles_of(grid: Sequence[int], tile: Sequence[int]) -> list[list[int]]:
    """Return the tokens of every tile of a grid, tiles and tokens in raster order."""
    return [
        [
            (a * grid[1] + b) * grid[2] + c
            for a in range(t, min(t + tile[0], grid[0]))
            for b in range(h, min(h + tile[1], grid[1]))
            for c in range(w, min(w + tile[2], grid[2]))
        ]
        for t in range(0, grid[0], tile[0])
        for h in range(0, grid[1], tile[1])
        for w in range(0, grid[2], tile[2])
    ]


def plan_mask(
    query: Tensor, key: Tensor, config: MethodConfig, layout: VideoLayout, layer: int = 0
) -> Tensor:
    """Return which pairs a sparse call computes, bool `[B, H, N, M]`; the plan is checked, and
    every query sees something."""
    plan = make_plan(query, key, key, config, layout=layout, layer=layer, layers=layer + 1)
    assert plan.query_tokens == query.shape[2] and plan.key_tokens == key.shape[2]
    mask = replace(plan, check=True).to_dense_mask()
    assert bool(mask.any(dim=-1).all())
    return mask


LAYOUT = VideoLayout(5, 6, 7, text=6, valid_text=torch.tensor([6, 2]))


def session_checks(config: MethodConfig, *, density: float = 1.0) -> None:
    """Run a method through sessions: text is dense both ways, padding is never seen, batches are
    their samples, bfloat16 runs, another video starts from nothing, the warm-up is dense."""
    config = replace(config.always_sparse(), strict=True)
    query, key, value = (
        normal(2, 3, LAYOUT.tokens, 8, seed=seed) * (2 - seed % 2) for seed in range(3)
    )
    session = Session(config, steps=3, layers=3, heads=3)
    outputs = [
        session.attend(query, key, value, step=step, layer=layer, layout=LAYOUT)
        for step, layer in ((0, 0), (0, 1), (1, 0), (2, 2))
    ]
    found = session.stats().density
    assert found is not None and 0 < found <= density
    real = LAYOUT.real_tokens()
    assert real is not None
    dense = scaled_dot_product_attention(query, key, value, attn_mask=real[:, None, None])
    text = slice(LAYOUT.text_start, None)
    for output in outputs:
        assert bool(output[real[:, None].expand(output.shape[:3])].isfinite().all())
        torch.testing.assert_close(output[0, :, text], dense[0, :, text])
        torch.testing.assert_close(output[1, :, text][:, :2], dense[1, :, text][:, :2])
        assert not torch.allclose(output, dense) or density == 1.0
    changed = [torch.where(real[:, None, :, None], side, 3.0) for side in (key, value)]
    other = Session(config, steps=3, layers=3, heads=3)
    unseen = other.attend(query, changed[0], changed[1], step=0, layer=0, layout=LAYOUT)
    video = LAYOUT.video_part
    torch.testing.assert_close(video(unseen), video(outputs[0]))  # padding is not seen
    alone = Session(config, steps=3, layers=3, heads=3)
    one = replace(LAYOUT, valid_text=torch.tensor([2]))
    second = alone.attend(query[1:], key[1:], value[1:], step=0, layer=0, layout=one)
    torch.testing.assert_close(second, outputs[0][1:])
    narrow = [side.bfloat16() for side in (query, key, value)]
    low = Session(config, steps=3, layers=3, heads=3).attend(
        narrow[0], narrow[1], narrow[2], step=0, layer=0, layout=LAYOUT
    )
    assert low.dtype == torch.bfloat16 and bool(low[0].isfinite().all())
    _check_warm_up(config, query)


def _check_warm_up(config: MethodConfig, query: Tensor) -> None:
    warm = replace(config, dense_steps=1, dense_layers=1)
    method = warm.start(Run(steps=3, layers=3, heads=3))
    shown = LAYOUT.video_part(query)
    for step, layer in ((0, 1), (1, 0)):
        decision = method.plan(shown, shown, shown, Call(step, layer, LAYOUT))
        assert decision.planned  # type: ignore[union-attr]
    assert isinstance(method.plan(shown, shown, shown, Call(1, 1, LAYOUT)), BlockPlan)
