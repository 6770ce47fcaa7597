import random
from pathlib import Path

import pytest
import torch

from tools.training import codes as codes_module
from tools.training.batches import draw_batch, noise_levels, pick_frames
from tools.training.build import make_vae
from tools.training.codes import Pool, Statistics, Supply
from tools.training.curriculum import STAGES, Kind

STATISTICS = Statistics(torch.zeros(1, 16, 1, 1, 1), torch.ones(1, 16, 1, 1, 1))


def test_both_ends_are_always_kept() -> None:
    chance = random.Random(0)
    assert pick_frames(1, chance) == [0]
    assert pick_frames(13, chance) == list(range(13))
    seen = set()
    for _ in range(50):
        frames = pick_frames(4, chance)
        assert frames == sorted(set(frames))
        assert (len(frames), frames[0], frames[-1]) == (4, 0, 12)
        seen.add(tuple(frames))
    assert (0, 4, 8, 12) in seen
    assert len(seen) > 20


def test_a_share_of_the_noise_is_high() -> None:
    levels = noise_levels(4000, (0.3, 0.9), torch.Generator().manual_seed(0))
    assert bool(((levels > 0) & (levels <= 1)).all())
    plain = noise_levels(4000, (0.0, 0.9), torch.Generator().manual_seed(0))
    more = (levels > 0.9).float().mean() - (plain > 0.9).float().mean()
    assert float(more) == pytest.approx(0.3 * (1 - float((plain > 0.9).float().mean())), abs=0.03)


def test_batches_have_what_losses_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes_module, "PICTURES", Supply(4, 1, 100))
    monkeypatch.setattr(codes_module, "CLIPS", Supply(2, 1, 100))
    torch.manual_seed(0)
    vae = make_vae()
    pictures, clips = (
        Pool(tmp_path, vae, STATISTICS, (2, 4), pictures=kind) for kind in (True, False)
    )
    chance = random.Random(0)
    stage = STAGES[3]
    one = draw_batch(stage, Kind((2, 4), 1, 12, 1.0), pictures, chance)
    assert one.clean.shape == one.noise.shape == (12, 16, 1, 2, 4)
    assert not one.from_image
    assert not any("moves" in caption.split() for caption in one.captions)
    batches = [draw_batch(stage, Kind((2, 4), 4, 2, 1.0), clips, chance) for _ in range(40)]
    assert 2 <= sum(batch.from_image for batch in batches) <= 16
    dropped = [caption == "" for batch in batches for caption in batch.captions]
    assert dropped == [not said for batch in batches for said in batch.said.tolist()]
    assert 0 < sum(dropped) < 20
    assert batches[0].targets.cover.shape == (2, 4, 2, 4, 4)
