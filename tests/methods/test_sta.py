import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden import Golden
from hypothesis import given, settings
from hypothesis import strategies as st
from making import normal
from methods_common import plan_mask, session_checks, tiles_of
from torch import Tensor

from svoo import BlockPlan, Call, Dense, Run, VideoLayout
from svoo.errors import ConfigError
from svoo.methods.sta import STAConfig
from svoo.profiles.windows import WindowTable


def definition(grid: Any, tile: Any, window: Any) -> Tensor:
    """Which tokens see which, bool `[N, N]`."""
    counts = [math.ceil(size / step) for size, step in zip(grid, tile, strict=True)]
    mask = torch.zeros(math.prod(grid), math.prod(grid), dtype=torch.bool)
    places = [
        (t, h, w) for t in range(counts[0]) for h in range(counts[1]) for w in range(counts[2])
    ]
    tokens = tiles_of(grid, tile)
    for rows, here in zip(tokens, places, strict=True):
        for columns, there in zip(tokens, places, strict=True):
            seen = True
            for count, size, q, k in zip(counts, window, here, there, strict=True):
                half = size // 2
                centre = min(max(q, half), count - 1 - half)  # too wide a window: any will do
                seen &= abs(centre - k) <= half
            if seen:
                mask[torch.tensor(rows)[:, None], columns] = True
    return mask


@settings(max_examples=20)
@given(
    grid=st.tuples(*[st.integers(1, 6)] * 3),
    tile=st.tuples(*[st.integers(1, 3)] * 3),
    window=st.tuples(*[st.integers(1, 6)] * 3),
)
def test_is_its_definition(grid: Any, tile: Any, window: Any) -> None:
    tokens = normal(2, 2, math.prod(grid), 3)
    mask = plan_mask(tokens, tokens, STAConfig(tile=tile, windows=window), VideoLayout(*grid))
    assert torch.equal(mask, definition(grid, tile, window).expand_as(mask))


def test_windows_of_heads_are_those_of_their_code(goldens: Path) -> None:
    golden = Golden(goldens / "sta-small-6x8x12.npz")
    windows = torch.tensor(golden.meta["windows"])[None, None]  # one step, one layer, five heads
    config = STAConfig(tile=(2, 4, 4), windows=windows)
    tokens = normal(1, 5, 576, 2)
    mask = plan_mask(tokens, tokens, config, VideoLayout(*golden.meta["canvas"]))
    packed = np.unpackbits(golden["token_mask_packed"].numpy(), axis=-1)[..., :576]
    assert torch.equal(mask, golden.mask())
    order = golden["query_order"]  # their token mask is in the order of tiles
    assert torch.equal(mask[:, :, order][..., order], torch.from_numpy(packed.astype(bool)))


def test_the_published_windows(goldens: Path, tmp_path: Path) -> None:
    windows = Golden(goldens / "sta-strategy-hunyuan.npz")["windows"]
    WindowTable(windows).save(tmp_path / "windows.safetensors")
    config = STAConfig(windows=tmp_path / "windows.safetensors", dense_steps=0)
    assert config.as_dict()["windows"] == str(tmp_path / "windows.safetensors")
    layout = VideoLayout(30, 48, 80)  # 5 x 6 x 10 tiles
    method = config.start(Run(steps=50, layers=60, heads=24))
    tokens = torch.zeros(1, 24, 1, 1).expand(1, 24, layout.video, 1)
    early = method.plan(tokens, tokens, tokens, Call(14, 3, layout))
    assert isinstance(early, Dense) and early.planned
    late = method.plan(tokens, tokens, tokens, Call(15, 3, layout))
    assert isinstance(late, BlockPlan)
    sees = [
        math.prod(
            count if 2 * (size // 2) + 1 >= count else 2 * (size // 2) + 1
            for size, count in zip(window.tolist(), (5, 6, 10), strict=True)
        )
        for window in windows[15, 3]
    ]
    assert late.keep[0].sum(dim=-1).tolist() == [[count] * 300 for count in sees]
    part = tokens[:, 4:10]
    shown = method.plan(part, part, part, Call(15, 3, layout, head_offset=4))
    assert isinstance(shown, BlockPlan) and torch.equal(shown.keep, late.keep[:, 4:10])
    half = config.start(Run(steps=25, layers=60, heads=24))  # step 7 of 25 is step 15 of 50
    assert isinstance(half.plan(tokens, tokens, tokens, Call(6, 3, layout)), Dense)
    assert isinstance(half.plan(tokens, tokens, tokens, Call(7, 3, layout)), BlockPlan)
    with pytest.raises(ConfigError, match="for all 26 heads, got 24"):
        method.plan(part, part, part, Call(15, 3, layout, head_offset=20))


def test_masks_are_made_once() -> None:
    method = STAConfig(tile=(1, 1, 2), dense_steps=0).start(Run(steps=4))
    tokens, layout = normal(1, 2, 4 * 5 * 6, 3), VideoLayout(4, 5, 6)
    plans = [method.plan(tokens, tokens, tokens, Call(s, s, layout)) for s in range(2)]
    assert all(isinstance(plan, BlockPlan) for plan in plans)
    assert plans[0].keep.data_ptr() == plans[1].keep.data_ptr()  # type: ignore[union-attr]
    assert method.state_bytes >= 60 * 60


def test_text_padding_and_two_videos() -> None:
    session_checks(STAConfig(tile=(2, 2, 2), windows=(1, 3, 1)))


def test_settings() -> None:
    assert STAConfig.for_model("wan2.1-t2v-14b").dense_steps == 0.24
    assert STAConfig.for_model("hunyuanvideo-t2v").dense_steps == 0.3
    table = STAConfig(windows=torch.ones(2, 3, 4, 3, dtype=torch.uint8))
    assert table.as_dict()["windows"] == "a table of 2 steps, 3 layers, 4 heads"


@pytest.mark.parametrize(
    ("setting", "value"), [("tile", (6, 8)), ("windows", (3, 3)), ("windows", 3)]
)
def test_bad_values_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{setting} must be .* got "):
        STAConfig(**{setting: value})
