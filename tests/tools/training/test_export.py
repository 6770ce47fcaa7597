import hashlib
import json
from pathlib import Path

import pytest
import torch
from diffusers import WanPipeline
from torch import nn

from tools.training import codes as codes_module
from tools.training.build import make_text_encoder, make_transformer, make_vae
from tools.training.export import export_pipeline, export_vae
from tools.training.training import average, save_resume


def checkpoint(path: Path, module: nn.Module) -> Path:
    optimiser = torch.optim.AdamW(module.parameters())
    facts = {"mean": [0.25] * 16, "spread": [2.0] * 16}
    save_resume(path, module, average(module, 0.9), [optimiser], facts)
    return path


def test_checkpoints_become_a_pipeline_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes_module, "SMALL", (2, 4))
    monkeypatch.setattr("tools.training.export.STATISTICS_CLIPS", 1)
    torch.manual_seed(0)
    vae = make_vae()
    folder = tmp_path / "weights"
    export_vae(checkpoint(tmp_path / "vae.safetensors", vae), folder)
    measured = json.loads((folder / "vae" / "config.json").read_text())["latents_std"]
    assert len(measured) == 16
    parts = nn.ModuleDict({"text_encoder": make_text_encoder(), "transformer": make_transformer()})
    trained = checkpoint(tmp_path / "dit.safetensors", parts)
    export_pipeline(trained, folder / "vae", folder)

    pipe = WanPipeline.from_pretrained(folder, dtype=torch.float32)
    stored = pipe.transformer.state_dict()
    for name, value in parts["transformer"].state_dict().items():
        torch.testing.assert_close(stored[name], value.half().float())
    for name, value in pipe.vae.state_dict().items():
        torch.testing.assert_close(value, vae.state_dict()[name].half().float())
    assert pipe.vae.config.latents_mean == [0.25] * 16
    assert pipe.vae.config.latents_std == [2.0] * 16

    hashes = json.loads((folder / "hashes.json").read_text())
    assert len(hashes) == 3
    for name, digest in hashes.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest

    for settings in folder.rglob("*.json"):
        assert str(tmp_path) not in settings.read_text(), f"{settings} names a path"
