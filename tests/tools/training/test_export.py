import hashlib
import json
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan, WanPipeline
from torch import nn

from tools.training import export as export_module
from tools.training.build import make_text_encoder, make_transformer, make_vae
from tools.training.export import encode_clips, export_pipeline, export_vae
from tools.training.training import average, save_resume


def checkpoint(path: Path, module: nn.Module) -> Path:
    optimiser = torch.optim.AdamW(module.parameters())
    save_resume(path, module, average(module, 0.9), optimiser, {"step": 1})
    return path


def test_checkpoints_become_a_pipeline_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "_STATISTICS_CLIPS", 2)
    monkeypatch.setattr(export_module, "CLIP_FRAMES", 5)
    torch.manual_seed(0)
    vae = make_vae()
    folder = tmp_path / "weights"
    export_vae(checkpoint(tmp_path / "vae.safetensors", vae), folder)
    parts = nn.ModuleDict({"text_encoder": make_text_encoder(), "transformer": make_transformer()})
    export_pipeline(checkpoint(tmp_path / "dit.safetensors", parts), folder)

    pipe = WanPipeline.from_pretrained(folder, dtype=torch.float32)
    stored = pipe.transformer.state_dict()
    for name, value in parts["transformer"].state_dict().items():
        torch.testing.assert_close(stored[name], value.half().float())
    again = AutoencoderKLWan.from_pretrained(folder / "vae", dtype=torch.float32)
    with torch.no_grad():
        codes = encode_clips(again, ["statistics 0", "statistics 1"])
    mean = torch.tensor(again.config.latents_mean)
    torch.testing.assert_close(codes.mean(dim=(0, 2, 3, 4)), mean, atol=1e-3, rtol=1e-3)

    hashes = json.loads((folder / "hashes.json").read_text())
    assert len(hashes) == 3
    for name, digest in hashes.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest

    for settings in folder.rglob("*.json"):
        assert str(tmp_path) not in settings.read_text(), f"{settings} names a path"
