import random
from pathlib import Path

import pytest
import torch

from tools.training import codes as codes_module
from tools.training.build import make_vae
from tools.training.codes import (
    Clip,
    Pool,
    Statistics,
    Supply,
    draw_picture,
    measure_statistics,
)
from tools.training.scenes import ask_for

STATISTICS = Statistics(torch.full((1, 16, 1, 1, 1), 0.5), torch.full((1, 16, 1, 1, 1), 2.0))


def test_a_code_frame_ends_every_fourth_frame() -> None:
    scene = ask_for("red", "circle", "left", "rippling water", random.Random(0))
    clip = Clip(scene)
    assert (48 * clip.times([0, 1, 12])).tolist() == [0, 4, 48]
    assert (48 * clip.times([0, 1, 12], back=3)).tolist() == [0, 1, 45]
    assert (48 * Clip(scene, 17).times([0])).tolist() == [17]


def test_pictures_show_any_time_but_nothing_turned() -> None:
    drawn = [draw_picture(random.Random(seed)) for seed in range(200)]
    spinning = [any(thing.motion == "spin" for thing in clip.scene.things) for clip in drawn]
    assert 0 < sum(spinning) < 200
    for clip, spins in zip(drawn, spinning, strict=True):
        assert clip.first_frame == 0 or not spins
    assert max(clip.first_frame for clip in drawn) > 40


def test_pools_grow_are_kept_and_number_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes_module, "PICTURES", Supply(3, 2, 4))
    torch.manual_seed(0)
    vae, chance = make_vae(), random.Random(0)
    pool = Pool(tmp_path, vae, STATISTICS, (2, 4), pictures=True)
    codes, clips = pool.draw(5, chance)
    for _ in range(3):
        pool.draw(5, chance)
    assert codes.shape == (5, 16, 1, 2, 4)
    assert len(clips) == 5
    assert len(pool.clips) == 6
    pool.draw(1, chance)
    assert (len(pool.clips), pool.next) == (9, 3)

    again = Pool(tmp_path, vae, STATISTICS, (2, 4), pictures=True)
    assert again.clips == pool.clips
    assert all(map(torch.equal, again.codes, pool.codes))
    elsewhere = Pool(tmp_path / "new", vae, STATISTICS, (2, 4), pictures=True, begin=3)
    elsewhere.draw(1, chance)
    assert elsewhere.next == 5
    assert not set(elsewhere.clips) & set(pool.clips)
    torch.manual_seed(1)
    assert not Pool(tmp_path, make_vae(), STATISTICS, (2, 4), pictures=True).clips


def test_codes_are_normalised_and_of_what_they_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes_module, "PICTURES", Supply(2, 1, 4))
    torch.manual_seed(0)
    vae = make_vae()
    pool = Pool(tmp_path, vae, STATISTICS, (2, 4), pictures=True)
    codes, clips = pool.draw(1, random.Random(0))
    with torch.no_grad():
        plain = codes_module.encode(vae, clips, 1, (2, 4))
    torch.testing.assert_close(codes, (plain - 0.5) / 2, atol=2e-3, rtol=2e-3)


def test_statistics_are_those_of_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes_module, "SMALL", (2, 4))
    torch.manual_seed(0)
    found = measure_statistics(make_vae(), clips=2)
    assert found.mean.shape == found.spread.shape == (1, 16, 1, 1, 1)
    assert bool((found.spread > 0).all())
