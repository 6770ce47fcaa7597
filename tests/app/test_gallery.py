from pathlib import Path

import numpy as np
import pytest
import torch
from making import normal
from PIL import Image

from svoo import Call, Run, VideoLayout
from svoo.app.gallery import Sight, draw_maps, see, watch_one, write_picture
from svoo.errors import ConfigError
from svoo.methods.pisa import PISAConfig
from svoo.methods.sol import SolConfig

LAYOUT = VideoLayout(3, 5, 7)


def sight_of(config: SolConfig | PISAConfig, head: int = 1) -> Sight:
    """What a watched method shows of a call, with two of three heads in its second group."""
    query, key, value = (normal(2, 3, LAYOUT.video, 8, seed=seed) for seed in range(3))
    found: list[Sight] = []
    watched = watch_one(config, (1, 4, head), found)
    assert isinstance(watched, type(config)) and watched.as_dict() == config.as_dict()
    method = watched.start(Run(steps=3))
    assert method.state_bytes == 0

    def run() -> None:
        for step in range(3):
            for layer in (3, 4):
                for first, last in ((0, 1), (1, 3)):
                    call = Call(step, layer, LAYOUT, head_offset=first)
                    heads = slice(first, last)
                    method.plan(query[:, heads], key[:, heads], value[:, heads], call)

    shown = see(run, found, (1, 4, head))
    assert torch.equal(shown.query, query[:1, head : head + 1])
    return shown


@pytest.mark.parametrize("order", ["raster", "morton"])
def test_maps_are_of_the_mask_and_the_softmax(order: str) -> None:
    sight = sight_of(SolConfig(block=8, order=order))  # type: ignore[arg-type]
    picture = draw_maps(sight, pixels=1000)  # a pixel per pair
    mask = sight.plan.to_dense_mask()[0, 0]
    weights = (sight.query @ sight.key.mT * sight.scale)[0, 0].softmax(dim=-1)
    raster = picture.maps["tokens in raster order"]
    torch.testing.assert_close(raster.kept, mask.float())
    torch.testing.assert_close(raster.attention, weights)
    assert picture.density == pytest.approx(float(mask.float().mean()))
    assert picture.recall == pytest.approx(float((weights * mask).sum(dim=-1).mean()), rel=1e-5)
    assert len(picture.maps) == (2 if order == "morton" else 1)
    if order == "morton":
        assert sight.plan.query_order is not None
        curve = sight.plan.query_order[0, 0]
        other = picture.maps["tokens in the method's order"]
        torch.testing.assert_close(other.kept, mask[curve][:, curve].float())
        torch.testing.assert_close(other.attention, weights[curve][:, curve])


def test_a_picture_is_pooled_and_written(tmp_path: Path) -> None:
    picture = draw_maps(sight_of(PISAConfig(block=8), head=2), pixels=20)  # a corrected plan
    (shown,) = picture.maps.values()
    assert shown.kept.shape == shown.attention.shape == (20, 20)
    assert float(shown.kept.mean()) == pytest.approx(picture.density, abs=0.02)
    write_picture(picture, tmp_path / "a.png", "a title")
    with Image.open(tmp_path / "a.png") as image:
        pixels = np.asarray(image.convert("RGB"), dtype=int)
    assert (pixels.max(axis=2) - pixels.min(axis=2) > 60).any()  # there is colour


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="no attention call with step 1, layer 4, head 3"):
        sight_of(PISAConfig(block=8), head=3)
    with pytest.raises(ConfigError, match="layer 4 is dense at step 1: warm-up"):
        sight_of(PISAConfig(block=8, dense_steps=2))
