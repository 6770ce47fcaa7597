"""From training checkpoints to the weights in the package: averaged, 16 bits, with their
hashes."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from safetensors import safe_open
from torch import Tensor, nn

from tools.training.build import assemble, make_text_encoder, make_transformer, make_vae
from tools.training.scenes import CLIP_FRAMES, draw_scene, render

_STATISTICS_CLIPS = 64


def load_averaged(checkpoint: Path, module: nn.Module) -> None:
    """Give a module the averaged weights of a resume file."""
    with safe_open(checkpoint, "pt") as file, torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(file.get_tensor(f"averaged/{name}"))


@torch.no_grad()
def export_vae(checkpoint: Path, folder: Path) -> None:
    """Write the trained autoencoder with the mean and spread of its code, which the denoiser is
    fed with."""
    vae = make_vae().eval()
    load_averaged(checkpoint, vae)
    vae = vae.half().float()  # the statistics should be those of the rounded weights
    codes = encode_clips(vae, [f"statistics {seed}" for seed in range(_STATISTICS_CLIPS)])
    mean, std = codes.mean(dim=(0, 2, 3, 4)), codes.std(dim=(0, 2, 3, 4))
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
    vae.half().save_pretrained(folder / "vae")


def encode_clips(vae: AutoencoderKLWan, seeds: list[str], batch: int = 4) -> Tensor:
    """Return the codes of half-size clips drawn from seeds, `[clips, channels, frames, rows,
    columns]`."""
    codes = []
    for start in range(0, len(seeds), batch):
        clips = [
            render(draw_scene(random.Random(seed)), CLIP_FRAMES, 80, 144)
            for seed in seeds[start : start + batch]
        ]
        codes.append(vae.encode(torch.stack(clips).transpose(1, 2)).latent_dist.mode())
    return torch.cat(codes)


def export_pipeline(checkpoint: Path, folder: Path) -> None:
    """Write the whole pipeline beside its autoencoder, and the hash of every weight file."""
    parts = nn.ModuleDict({"text_encoder": make_text_encoder(), "transformer": make_transformer()})
    load_averaged(checkpoint, parts)
    vae = AutoencoderKLWan.from_pretrained(folder / "vae", dtype=torch.float16)
    pipe = assemble(vae, parts["text_encoder"].half(), parts["transformer"].half())
    settings = folder / "vae" / "config.json"
    unchanged = settings.read_bytes()
    pipe.save_pretrained(folder)
    settings.write_bytes(unchanged)  # diffusers adds the path of this machine
    write_hashes(folder)


def write_hashes(folder: Path) -> None:
    """Write the SHA-256 of every weight file below a folder."""
    hashes = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.safetensors"))
    }
    (folder / "hashes.json").write_text(json.dumps(hashes, indent=1) + "\n")
