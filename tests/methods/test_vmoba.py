import math
from pathlib import Path
from typing import Any

import pytest
import torch
from golden import Golden
from hypothesis import given, settings
from hypothesis import strategies as st
from making import normal
from methods_common import plan_mask, session_checks, tiles_of
from torch import Tensor

from svoo import BlockPlan, Call, Run, VideoLayout
from svoo.errors import ConfigError
from svoo.methods.vmoba import VMoBAConfig


def partition(grid: Any, config: VMoBAConfig, kind: int) -> list[list[int]]:
    shapes = [(config.time, *grid[1:]), (grid[0], *config.plane), config.cube]
    return tiles_of(grid, shapes[kind])


def definition(query: Tensor, key: Tensor, grid: Any, config: VMoBAConfig, kind: int) -> Tensor:
    """Which pairs are kept, bool `[B, H, N, N]`, one token after the other."""
    chunks = partition(grid, config, kind)
    mask = torch.zeros(*query.shape[:3], key.shape[2], dtype=torch.bool)
    own = {token: place for place, chunk in enumerate(chunks) for token in chunk}
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            means = torch.stack([key[b, h, chunk].mean(dim=0) for chunk in chunks])
            gates = query[b, h] @ means.T
            for token, gate in enumerate(gates):
                for chunk in choose(gate.tolist(), gates, own[token], config, own, kind):
                    mask[b, h, token, chunks[chunk]] = True
    return mask


def choose(
    gate: list[float],
    gates: Tensor,
    own: int,
    config: VMoBAConfig,
    home: dict[int, int],
    kind: int,
) -> list[int]:
    others = sorted((c for c in range(len(gate)) if c != own), key=lambda c: -gate[c])
    if config.select == "topk":
        return [own, *others[: config.topk[kind] - 1]]
    if config.scope == "query":
        low, width = min(gate), max(gate) - min(gate)
        scaled = [(g - low) / (width if width > 1e-6 else 1) for g in gate]
        total, held = sum(scaled) + 1e-6, scaled[own]
        kept = []
        for chunk in others:
            kept.append(chunk)
            if (held := held + scaled[chunk]) / total >= config.threshold:
                break
        return [own, *kept]
    low, width = float(gates.min()), float(gates.max() - gates.min())
    scaled_all = (gates - low) / (width if width > 1e-6 else 1)
    total = float(scaled_all.sum()) + 1e-6
    held = sum(float(scaled_all[token, chunk]) for token, chunk in home.items())
    rest = [
        float(scaled_all[token, chunk])
        for token in range(len(gates))
        for chunk in range(len(gate))
        if chunk != home[token]
    ]
    least = math.inf
    for score in sorted(rest, reverse=True):
        least = score
        held += score
        if held / total >= config.threshold:
            break
    scale = width if width > 1e-6 else 1
    return [own, *(c for c in others if (gate[c] - low) / scale >= least - 1e-12)]


@settings(max_examples=20)
@given(
    grid=st.tuples(*[st.integers(1, 5)] * 3),
    sizes=st.tuples(*[st.integers(1, 3)] * 6),
    select=st.sampled_from(("topk", "threshold")),
    scope=st.sampled_from(("query", "head")),
    threshold=st.sampled_from((0.1, 0.25, 0.7)),
    kind=st.integers(0, 2),
)
def test_is_its_definition(
    grid: Any, sizes: Any, select: Any, scope: Any, threshold: float, kind: int
) -> None:
    config = VMoBAConfig(
        select=select,
        scope=scope,
        threshold=threshold,
        topk=(1, 2, 3),
        time=sizes[0],
        plane=sizes[1:3],
        cube=sizes[3:],
    )
    query, key = (normal(2, 2, math.prod(grid), 5, seed=s, dtype=torch.float64) for s in (0, 1))
    mask = plan_mask(query, key, config, VideoLayout(*grid), layer=3 + kind)
    assert torch.equal(mask, definition(query, key, grid, config, kind))


@pytest.mark.parametrize(
    ("name", "kind", "config"),
    [
        ("t1d-topk2-qh", 0, VMoBAConfig(select="topk", topk=(2, 1, 1), time=2)),
        ("s2d-topk3-qh", 1, VMoBAConfig(select="topk", topk=(1, 3, 1), plane=(4, 4))),
        ("st3d-thr25-qh", 2, VMoBAConfig(cube=(4, 4, 4))),
        ("st3d-thr25-headglobal", 2, VMoBAConfig(cube=(4, 4, 4), scope="head")),
    ],
)
def test_keeps_what_their_code_keeps(
    goldens: Path, name: str, kind: int, config: VMoBAConfig
) -> None:
    golden = Golden(goldens / f"vmoba-{name}.npz")
    mask = plan_mask(*golden.tokens, config, golden.layout, layer=kind)
    assert torch.equal(mask, golden.mask())


def test_equal_tokens_are_one_block_and_layers_take_turns() -> None:
    layout = VideoLayout(4, 6, 8)
    config = VMoBAConfig(select="topk", topk=(1, 1, 1), dense_steps=0, dense_layers=2)
    method = config.start(Run(steps=4))
    tokens = normal(1, 2, layout.video, 4)
    plans = [method.plan(tokens, tokens, tokens, Call(0, layer, layout)) for layer in range(2, 6)]
    counts = [plan.keep.shape[2:] for plan in plans if isinstance(plan, BlockPlan)]
    assert counts == [(2, 2), (4, 4), (2, 2), (2, 2)]  # only its own chunk: as many as chunks
    assert method.heads_per_plan(tokens, tokens) > 2
    large = tokens[:, :, :1].expand(2, 2, 75_600, 4)
    assert method.heads_per_plan(large, large) == 1


def test_text_padding_and_two_videos() -> None:
    session_checks(VMoBAConfig(time=1, plane=(2, 2), cube=(2, 2, 2)))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("select", "all"),
        ("threshold", 2),
        ("scope", "layer"),
        ("topk", 3),
        ("time", 0),
        ("plane", (1,)),
        ("cube", (1, 1, 0)),
    ],
)
def test_bad_values_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{setting} must be .* got "):
        VMoBAConfig(**{setting: value})
