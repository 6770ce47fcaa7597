import json
import random
from pathlib import Path

import pytest
import torch

from tools.training import train_vae as train_vae_module
from tools.training.build import make_vae
from tools.training.train_vae import draw_batch, held_out_psnr, initialise, train_vae


def test_the_start_treats_a_still_clip_as_a_still() -> None:
    torch.manual_seed(0)
    vae = make_vae()
    initialise(vae)
    still = torch.randn(1, 3, 1, 16, 16).expand(1, 3, 9, 16, 16)
    with torch.no_grad():
        code = vae.encode(still).latent_dist.mode()
        video = vae.decode(code).sample
    torch.testing.assert_close(code, code[:, :, :1].expand_as(code))
    torch.testing.assert_close(video, video[:, :, :1].expand_as(video))


def test_batches_are_crops_in_range() -> None:
    shapes = set()
    for seed in range(20):
        clips = draw_batch(random.Random(seed))
        assert bool(((clips >= -1) & (clips <= 1)).all())
        shapes.add((clips.shape[0], *clips.shape[2:]))
    assert shapes == set(train_vae_module.BATCHES)
    assert draw_batch(random.Random(0), pictures=True).shape == (16, 3, 1, 64, 64)


def test_training_writes_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_vae_module, "PICTURE_STEPS", 1)
    monkeypatch.setattr(train_vae_module, "PICTURES", (2, 1, 16, 16))
    monkeypatch.setattr(train_vae_module, "BATCHES", ((1, 5, 16, 16),))
    monkeypatch.setattr(train_vae_module, "held_out_psnr", lambda *_: 12.5)
    train_vae(tmp_path, 2, resume=False)
    train_vae(tmp_path, 3, resume=True)
    rows = [json.loads(line) for line in (tmp_path / "vae.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 3
    assert rows[-1]["held_out_psnr"] == 12.5
    assert (tmp_path / "vae.safetensors").stat().st_size < 30 << 20


def test_held_out_psnr_of_an_untrained_model_is_poor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_vae_module, "CLIP_FRAMES", 5)
    torch.manual_seed(0)
    assert held_out_psnr(make_vae(), 1, tmp_path / "grid.png") < 20
    assert (tmp_path / "grid.png").exists()
