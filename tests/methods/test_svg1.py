import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import chance, normal
from method_checks import check_text_padding_and_odd_sizes, check_videos_are_apart, plan_of
from torch import Tensor

from svoo import BlockPlan, Call, Dense, Run, VideoLayout
from svoo.core.quality import masked_errors
from svoo.errors import ConfigError
from svoo.methods.svg1 import SVG1Config, classifying_masks, make_bands

Family = Literal["wan", "hunyuan"]


def slow_mask(layout: VideoLayout, config: SVG1Config, *, temporal: bool) -> Tensor:
    """The mask that heads are classified by, token by token, bool `[N, N]`."""
    frame = layout.height * layout.width

    def place(token: int) -> int:
        return (token % frame) * layout.frames + token // frame if temporal else token

    reach = (2 * frame if config.family == "wan" else 1.5 * frame) // config.block
    places = [place(token) for token in range(layout.video)]
    rows = [
        [
            abs(q // config.block - k // config.block) < max(1, reach)
            or (config.family == "wan" and k < frame)
            for k in places
        ]
        for q in places
    ]
    return torch.tensor(rows)


def slow_band(layout: VideoLayout, config: SVG1Config) -> Tensor:
    """The blocks that the band which runs touches, token by token, bool `[C, C]`."""
    tokens, block = layout.video, config.block
    width = tokens * (1 - math.sqrt(1 - config.density)) / block
    keep = torch.eye(-(-tokens // block), dtype=torch.bool)
    for q in range(tokens):
        for k in range(tokens):
            if config.family == "wan":
                seen = abs(q - k) <= math.ceil(width) * block
                seen = seen or k < layout.height * layout.width
            else:
                seen = abs(q - k) < math.floor(width) * block
            if seen:
                keep[q // block, k // block] = True
    return keep


@settings(max_examples=25)
@given(
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    block=st.integers(1, 7),
    family=st.sampled_from(("wan", "hunyuan")),
    density=st.sampled_from((0.1, 0.5)),
    seed=st.integers(0, 100),
)
def test_the_plan_is_the_slow_rule(
    grid: tuple[int, int, int], block: int, family: Family, density: float, seed: int
) -> None:
    layout = VideoLayout(*grid)
    config = SVG1Config(density=density, rows=5, family=family, block=block)
    query, key, value = (
        2 * normal(2, 2, layout.video, 4, seed=seed + s, dtype=torch.float64) for s in range(3)
    )
    plan = plan_of(config, (query, key, value), Call(0, 0, layout, generator=chance(seed)))
    assert isinstance(plan, BlockPlan)
    rows = torch.randint(layout.video, (5,), generator=chance(seed))
    masks = [slow_mask(layout, config, temporal=temporal) for temporal in (False, True)]
    frame = layout.height * layout.width
    assert plan.query_order is not None
    assert torch.equal(plan.keep, slow_band(layout, config).expand_as(plan.keep))
    for b in range(2):
        for h in range(2):
            logits = query[b, h, rows] @ key[b, h].T / 2
            exact = logits.softmax(-1) @ value[b, h]
            errors = []
            for mask in masks:
                under = logits.masked_fill(~mask[rows], -torch.inf).softmax(-1) @ value[b, h]
                errors.append(float((under - exact).square().mean()))
            temporal = errors[1] < errors[0] and abs(errors[1] - errors[0]) > 1e-14
            order = torch.arange(layout.video)
            if temporal:
                order = order.view(layout.frames, frame).T.flatten()
            if abs(errors[1] - errors[0]) > 1e-14:
                assert torch.equal(plan.query_order[b, h], order)


@pytest.mark.parametrize("name", ["svg1-wan-f7-t100", "svg1-hunyuan-f6-t256-ctx64"])
def test_masks_errors_and_blocks_are_theirs(goldens: Path, name: str) -> None:
    with np.load(goldens / f"{name}.npz") as stored:
        golden = dict(stored)
    family: Family = "wan" if "wan" in name else "hunyuan"
    height = 10 if family == "wan" else 16
    frames, frame = int(golden["num_frame"]), int(golden["frame_size"])
    layout = VideoLayout(frames, height, frame // height, text=int(golden["context_length"]))
    config = SVG1Config(density=float(golden["sparsity_arg"]), family=family)
    bands = make_bands(layout, config)
    video = len(bands.sizes)
    assert (bands.keep.numpy() == golden["flex_blocks_touched"][:video, :video]).all()
    order = golden["token_major_order"][: layout.video]
    assert (bands.orders[1].numpy() == order).all()
    limit = min(int(golden["sample_mse_max_row"]), layout.video)
    masks = classifying_masks(torch.arange(limit), bands.positions, layout, config)
    for place, kind in enumerate(("spatial", "temporal")):
        bits = np.unpackbits(golden[f"profile_{kind}_packed"], axis=-1)[:limit, : layout.video]
        assert (masks[place].numpy() == bits.astype(bool)).all()
    rows = torch.from_numpy(golden["sampled_rows"])
    query, key, value = (layout.video_part(torch.from_numpy(golden[side])) for side in "qkv")
    errors = masked_errors(query, key, value, rows, masks[:, rows], None)
    if family == "wan":  # with text theirs looks at it too; the choice is the same
        torch.testing.assert_close(errors, torch.from_numpy(golden["sampled_mses"]))
    assert ((errors[1] < errors[0]).long().numpy() == golden["best_mask_idx"]).all()


SMALL = SVG1Config(block=8, density=0.2)


def test_text_padding_and_odd_sizes() -> None:
    check_text_padding_and_odd_sizes(SMALL)
    check_text_padding_and_odd_sizes(SVG1Config(block=8, density=0.2, family="hunyuan"))


def test_videos_are_apart() -> None:
    check_videos_are_apart(SMALL, VideoLayout(2, 4, 5))


def test_bands_are_made_once_and_the_grid_is_needed() -> None:
    method = SMALL.always_sparse().start(Run(steps=4))
    tokens = normal(1, 2, 60, 8)
    method.plan(tokens, tokens, tokens, Call(0, 0, VideoLayout(3, 4, 5)))
    before = method.state_bytes
    method.plan(tokens, tokens, tokens, Call(1, 3, VideoLayout(3, 4, 5)))
    assert method.state_bytes == before > 0
    with pytest.raises(ConfigError, match="svg1 needs the grid"):
        method.plan(tokens, tokens, tokens, Call(1, 0))
    warm = SMALL.start(Run(steps=4)).plan(tokens, tokens, tokens, Call(0, 0))
    assert isinstance(warm, Dense) and warm.planned


def test_settings_of_the_models() -> None:
    wan, hunyuan = (SVG1Config.for_model(name) for name in ("wan2.1-t2v-14b", "hunyuanvideo-i2v"))
    assert (wan.density, wan.family, wan.dense_steps) == (0.3, "wan", 0.2)
    assert (hunyuan.density, hunyuan.family, hunyuan.dense_steps) == (0.25, "hunyuan", 0.1)


@pytest.mark.parametrize(
    "bad", [{"density": 0.0}, {"density": 2.0}, {"rows": 0}, {"block": 0}, {"family": "x"}]
)
def test_bad_settings(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        SVG1Config(**bad)
