from dataclasses import replace
from typing import Any

import pytest
import torch
from comfy_stub import HunyuanVideo, WanModel
from hypothesis import given
from hypothesis import strategies as st
from making import normal
from torch import Tensor, nn

from integrations.comfyui.models import (
    MODELS,
    count_layers,
    find_grid,
    find_layout,
    find_model,
    name_model,
    weigh_heads,
)
from svoo import Dense, VideoLayout

WAN, HUNYUAN = MODELS["WanModel"], MODELS["HunyuanVideo"]


def test_grids_are_padded_to_whole_patches() -> None:
    assert find_grid(normal(1, 4, 3, 7, 9), (1, 2, 2)) == (3, 4, 5)
    assert find_grid(normal(1, 4, 3, 7, 9), [1, 1, 1]) == (3, 7, 9)
    assert find_grid(normal(1, 4, 7, 9), (1, 2, 2)) is None  # a picture
    assert find_grid(normal(1, 4, 3, 7, 9), [2, 2]) is None
    assert find_grid(normal(1, 4, 3, 7, 9), ()) is None


def test_known_models() -> None:
    assert find_model(WanModel()) is WAN and find_model(HunyuanVideo()) is HUNYUAN
    assert find_model(nn.Linear(1, 1)) is None
    assert count_layers(WanModel(blocks=3), WAN) == 3
    assert count_layers(HunyuanVideo(), HUNYUAN) == 2


@pytest.mark.parametrize(
    ("model", "channels", "clip", "name"),
    [
        (WanModel(dim=48, heads=12, blocks=30), 16, False, "wan2.1-t2v-1.3b"),
        (WanModel(dim=80, heads=40, blocks=40), 16, False, "wan2.1-t2v-14b"),
        (WanModel(dim=80, heads=40, blocks=40), 36, True, "wan2.1-i2v-14b"),
        (WanModel(dim=80, heads=40, blocks=40), 36, False, "wan2.2-i2v-a14b"),
        (WanModel(dim=28, heads=2, blocks=7), 16, False, "mini"),
        (WanModel(), 16, False, None),
    ],
)
def test_models_of_the_catalogue_are_named(
    model: Any, channels: int, clip: bool, name: str | None
) -> None:
    model.patch_embedding = nn.Conv3d(channels, 4, 1)
    model.img_emb = nn.Linear(1, 1) if clip else None
    assert name_model(model, WAN) == name


def test_hunyuan_video_is_named_by_its_layers_and_heads() -> None:
    model = HunyuanVideo(dim=48, heads=24)
    assert name_model(model, HUNYUAN) is None
    for kind, count in (("double_blocks", 20), ("single_blocks", 40)):
        block = getattr(model, kind)[0]
        setattr(model, kind, nn.ModuleList([block] * count))
    assert name_model(model, HUNYUAN) == "hunyuanvideo-t2v"


def test_wan_tokens_are_whole_frames() -> None:
    layout = find_layout(WAN, (3, 4, 5), 80, 2, None)
    assert isinstance(layout, VideoLayout) and (layout.frames, layout.text) == (4, 0)
    odd = find_layout(WAN, (3, 4, 5), 81, 2, None)
    assert isinstance(odd, Dense) and "81 tokens are no whole frames of 4 x 5" in odd.reason
    masked = find_layout(WAN, (3, 4, 5), 60, 2, torch.zeros(60))
    assert isinstance(masked, Dense) and "mask" in masked.reason


@given(
    real=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    form=st.sampled_from(("bool", "float32", "bfloat16")),
    shared=st.booleans(),
)
def test_a_mask_tells_the_padding(real: list[int], form: str, shared: bool) -> None:
    batch = len(real)
    rows = torch.arange(69) < 60 + torch.tensor(real[:1] if shared else real).unsqueeze(1)
    mask = rows.unsqueeze(1)
    if form != "bool":
        dtype = getattr(torch, form)
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    layout = find_layout(HUNYUAN, (3, 4, 5), 69, batch, mask)
    assert isinstance(layout, VideoLayout) and layout.text == 9 and layout.valid_text is not None
    assert layout.valid_text.tolist() == (real[:1] * batch if shared else real)


@pytest.mark.parametrize(
    "mask",
    [
        torch.arange(69) > 3,  # hides video
        torch.arange(69) != 63,  # a hole in the text
        torch.linspace(0, 1, 69),  # weighs
        torch.zeros(69, 69),  # a row of its own for every query
    ],
)
def test_other_masks_are_not_understood(mask: Tensor) -> None:
    found = find_layout(HUNYUAN, (3, 4, 5), 69, 1, mask)
    assert isinstance(found, Dense) and "does not mark padding" in found.reason


class Hidden(nn.Module):
    """A layer whose weight cannot be read."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("model", [WanModel(dim=64), HunyuanVideo(dim=64)])
def test_heads_are_weighed_by_their_projection(model: nn.Module) -> None:
    known = find_model(model)
    assert known is not None
    with torch.no_grad():
        for projection in known.projections(model):
            projection.module.weight[:, :32] *= 3  # type: ignore[index, operator]
    found = weigh_heads(model, known, torch.zeros(1))
    for layer, projection in enumerate(known.projections(model)):
        weight: Tensor = projection.module.weight  # type: ignore[assignment]
        slices = [weight[:, 32 * head : 32 * (head + 1)].norm() / 32**0.5 for head in (0, 1)]
        torch.testing.assert_close(found[0, layer], torch.stack(slices).detach())
    hidden = [Hidden(projection.module) for projection in known.projections(model)]  # type: ignore[arg-type]
    rows = [
        type(projection)(layer, projection.heads, projection.width, projection.inputs)
        for projection, layer in zip(known.projections(model), hidden, strict=True)
    ]
    asked = replace(known, projections=lambda _model: rows)
    torch.testing.assert_close(weigh_heads(model, asked, torch.zeros(1)), found, rtol=0.15, atol=0)
